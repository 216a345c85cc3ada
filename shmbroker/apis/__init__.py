"""One module per Kafka API, each with the same head; `table` lists them in api-key order."""
