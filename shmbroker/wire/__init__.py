"""The Kafka wire protocol: bytes to messages and back, nothing else.

Everything here is pure: no socket, no clock, no state but caches of compiled functions. Bytes that
do not parse raise `shmbroker.errors.ProtocolFault` and nothing else.

    primitives           varints, lengths, tagged fields
    schema               the table of all messages, and how to read it
    codec                compiles decode and encode functions out of the table
    frame                request and response headers, by hand
    api_keys             Kafka's request types and their versions
    error_codes          Kafka's error codes
    metadata_records     the frame around a record of the metadata log
    coordinator_records  the frame around a record of a coordinator's log
"""
