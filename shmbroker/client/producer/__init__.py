"""Arrow columns to topics: a Kafka producer whose unit is the column, not the record.

`shmbroker.arrow.write` and `shmbroker.arrow.Producer` are what people use; the Spark sink stands on
the same.

    columns     any table to the columns of records, in chunks
    placement   which record goes to which partition, on whole columns
    encoding    columns to the bytes of record batches, compiled or by numpy
    buffers     the batch that is still open; memory for all batches
    filling     columns into the open batch of each partition
    delivery    one partition's batches: waiting, in flight, returned; pure
    backlog     all partitions' batches, and the lock that the two threads share
    bell        how callers wake the thread that sends
    questions   topics, and producer ids
    transactions  a transactional id: its coordinators, and what may follow what
    epochs      what a transaction begins and ends with it: records, the thread that sends
    connection  one socket to a leader that never blocks
    leaders     who leads what, and a connection to each
    sending     the thread that sends: requests out, answers in, tried again
    settings    the options, checked
    written     what a producer id has stored already, read back
    producer    what people call
"""
