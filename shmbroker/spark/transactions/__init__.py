"""Writes of many tasks in one transaction, so that readers see a whole micro-batch or nothing.

leases        whose turn it is in each partition, as a pure state machine
messages      what tasks, keeper and driver say to each other, over sockets
series        the runs of a series of writes, each in a transaction of its own
conversation  what a task asks of its run
keeper        the process beside Spark's driver that has the transactions
driver        starts the keeper, tells it to commit and to abort
sending       a task: rows into a file first, then by leases into the partitions
"""
