"""The model checker of the protocol of turns: production's pure machines in a simulated cluster.

`world.World(choices)` is one schedule: brokers, a coordinator, edges, moderation, orchestrators and workers, and every
trouble that they may have, in an order that `choices` decides. The folds and the bookkeeping are production's own
(parley.transcript, parley.session, parley.ownership, parley.endings, parley.side_inputs, the edge's projection, the
store's standing, the usage tally); the roles' control flow, in production asyncio, is modelled by generators in which
every `yield` is a point where anything else may happen. At the end all troubles are over, everything must come to rest,
and `invariants.broken(world)` must find nothing.

    python -m tests.unit.protocol explore 20000        # how many schedules break which promise
    python -m tests.unit.protocol table 5000           # each rule taken away: where a schedule first shows it
"""
