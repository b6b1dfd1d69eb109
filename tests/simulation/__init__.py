"""Deterministic simulation: the roles' real code on one event loop with virtual time and a simulated Kafka.

Orchestrators, workers and moderation run as they are, down to the calls of aiokafka; brokers, coordinator, engines,
store, users and time are simulated (loop, cluster, coordinator, membership, clients, engine, store, users). A seed
makes a plan (plan): who talks, what goes wrong and when. When the trouble is over all must heal, and everything that
was ever written is checked against the promises (journal, checks).

Every choice that the world makes is drawn from the seed: a schedule that breaks a promise breaks it again, with the
same code. A fault that was found is written down as a scenario, which other draws can't lose.

    python -m tests.simulation --first 1 --count 5000        look for faults; prints the seeds that break
    python -m tests.simulation --seed 17 --trace --logs      one schedule, all that happens in it
    python -m tests.simulation --scenario takeover_lands_late --trace
"""
