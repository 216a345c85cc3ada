"""`shmbroker ingest`: a topic's records as columns, in files that hold every record once."""
