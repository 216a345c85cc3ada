"""Topics as Arrow data, without Spark.

    write(table, "topic", bootstrap_servers="127.0.0.1:9092")       a table, a polars frame, …
    with Producer("127.0.0.1:9092", topic="topic") as producer:     batch by batch
        producer.send(batch)

Writing works with any Kafka cluster. How: `docs/arrow.md`.
"""

from shmbroker.producer.faults import ClusterFault, DeliveryFault
from shmbroker.producer.producer import PartitionWritten, Producer, Written, write

__all__ = ["ClusterFault", "DeliveryFault", "PartitionWritten", "Producer", "Written", "write"]
