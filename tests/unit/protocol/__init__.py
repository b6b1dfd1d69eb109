"""The model checker of the protocol of turns: production's pure machines in a simulated cluster.

`world.World(choices)` is one schedule: brokers, a coordinator, edges, moderation, orchestrators and workers, and every
trouble that they may have, in an order that `choices` decides. The folds and the bookkeeping are production's own
(parley.transcript, parley.session, parley.ownership, parley.endings, parley.side_inputs, the edge's projection, the
store's standing, the usage tally); the roles' control flow, in production asyncio, is modelled by generators in which
every `yield` is a point where anything else may happen. At the end all troubles are over, everything must come to rest,
and `invariants.broken(world)` must find nothing.

In tests/unit, with the project's root in PYTHONPATH:

    python -m protocol explore 20000          # how many schedules break which promise, and where first
    python -m protocol explore 5000 proof     # the same without a rule of rules.RULES
    python -m protocol table 5000             # each rule taken away: the first seed that shows it
    python -m protocol show 17 proof          # what was appended in one schedule
"""
