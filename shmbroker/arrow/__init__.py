"""Topics as Arrow data, without Spark.

    read("topic", bootstrap_servers="127.0.0.1:9092")               a pyarrow Table
    scan("topic", bootstrap_servers="127.0.0.1:9092")               batch by batch, as it is decoded
    write(table, "topic", bootstrap_servers="127.0.0.1:9092")       a table, a polars frame, …
    with Producer("127.0.0.1:9092", topic="topic") as producer:     batch by batch
        producer.send(batch)
    with Producer("127.0.0.1:9092", transactional_id="app-1") as producer:
        with producer.transaction():                                all of it, or nothing
            producer.send(batch, "topic")

Both work with any Kafka cluster; on the host of a shmbroker, reading takes the log files. How:
`docs/arrow.md`.
"""

from shmbroker.arrow.reader import COLUMNS, read, scan
from shmbroker.client.faults import (
    ClusterFault,
    DataLossFault,
    DeliveryFault,
    FencedFault,
    TransactionFault,
)
from shmbroker.client.producer.backlog import PartitionWritten, Written
from shmbroker.client.producer.producer import Producer, write

__all__ = [
    "COLUMNS",
    "ClusterFault",
    "DataLossFault",
    "DeliveryFault",
    "FencedFault",
    "PartitionWritten",
    "Producer",
    "TransactionFault",
    "Written",
    "read",
    "scan",
    "write",
]
