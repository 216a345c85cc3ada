"""One replica of a partition, as one broker knows it; pure."""
