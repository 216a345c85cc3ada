"""Compaction: which part of a log, by which keys, and how its segments are replaced."""
