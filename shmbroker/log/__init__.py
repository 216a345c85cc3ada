"""The storage engine: Kafka's log directory format, written through mapped segments by one process.

Start with `partition_log`: one partition's log, the only thing most callers need.
"""
