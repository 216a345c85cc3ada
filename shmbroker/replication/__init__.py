"""Partitions as replicas: leader, epoch, in-sync replicas, high watermark."""
