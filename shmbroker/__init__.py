"""shmbroker: a Kafka-protocol message broker for one Linux host, of processes that share memory."""

__version__ = "0.1.0"
