"""Deterministic simulation: the roles' real code on one event loop with virtual time and a simulated Kafka.

Every choice that the world makes, from the order of events to the fate of a send, is drawn from one seed: a schedule
that breaks a promise breaks it again. `python -m tests.simulation --help` runs seeds by hand; README.md says how to
read one.
"""
