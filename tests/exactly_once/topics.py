"""The topics of the pipelines, and their group."""

IN = "eos-in"
OUT = "eos-out"
AUDIT = "eos-audit"
LATEST = "eos-latest"
"""Compacted."""
SUMS = "eos-sums"
BUCKETS = "eos-buckets"
GROUP = "eos"
PARTITIONS = 4
BUCKET_COUNT = 7
