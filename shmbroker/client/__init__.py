"""A Kafka client library, under `arrow`, `spark`, the tools and the command line.

    connection  one socket: blocking; and the matching of answers to requests, which the producer's
                never-blocking connections share
    cluster     brokers, leaders, and who is asked
    versions    the version of each API that is spoken
    retries     what fails for a while is tried again
    faults      all that goes wrong, and what its users can do about it
    admin       single questions for the command line
    producer    Arrow columns to topics
    reader      topics to Arrow columns

Rule: it talks to any Kafka. Of the broker's own packages it imports none; what it knows of a
shmbroker on the same host is the control socket, and the files of the log.
"""
