"""Arrow columns to topics: a Kafka producer whose unit is the column, not the record.

`shmbroker.arrow.write` and `shmbroker.arrow.Producer` are what people use; the Spark sink stands on
the same.

    columns     any table to the columns of records, in chunks
    placement   which record goes to which partition, on whole columns
    encoding    columns to the bytes of record batches, compiled or by numpy
    delivery    one partition's batches: waiting, in flight, returned; pure
    questions   topics, and producer ids
    transactions  a transactional id: its coordinators, and what may follow what
    connection  one socket to a leader that never blocks
    written     what a producer id has stored already, read back
    producer    accumulates, sends, retries: the two threads of it
"""
