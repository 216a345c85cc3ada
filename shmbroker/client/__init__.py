"""A Kafka client library, under `arrow`, `spark` and `cli`.

    addresses     where brokers listen
    connection    one socket that blocks; what matches answers to requests on any socket
    cluster       brokers, leaders, and who is asked
    versions      the version of each API that is spoken
    retries       what fails for a while is tried again
    faults        all that goes wrong, and what users of the client can do about it
    security      the settings of TLS and SASL; tls, sasl, scram and oauth carry them out
    profiles      these settings by a name; secrets says where passwords lie
    nearest       which name was meant
    admin         the questions of the command line that confluent-kafka has no call for;
                  transactions and users have those about these
    producer      Arrow columns to topics
    reader        topics to Arrow columns

Rule: it talks to any Kafka. Of the broker's own packages it imports none; what it knows of a
shmbroker on the same host is the control socket, and the files of the log.
"""
