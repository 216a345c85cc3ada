"""What an I/O worker runs: the partitions of one broker, appended to, read and kept."""
