"""Record batches: Kafka's magic 2 format, its codecs, and how a Produce is judged. Pure."""
