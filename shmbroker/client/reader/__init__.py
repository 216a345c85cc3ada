"""Topics to Arrow columns: from a broker's log files where they can be opened, else fetched.

`shmbroker.arrow.read` and the Spark source stand on it.

    broker_client  what is asked: topics, offsets, files, sizes, commits
    tasks          ranges of offsets to tasks: asks, looks at files, plans
    planning       ranges and segment lists to pieces; pure
    segment_files  the files of a broker on this host
    fetching       the same over the Kafka protocol
    reading        pieces to Arrow batches, by either way
    decode         record batches to Arrow columns, compiled or by numpy
    aborted        which records are of aborted transactions; pure
"""
