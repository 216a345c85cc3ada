"""What a family shows of itself to Prometheus: which series there are, and where each is from."""
