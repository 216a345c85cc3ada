"""Shared memory between the processes of one family; knows nothing of what is carried in it.

region      a piece of shared memory, made before the first fork
words       8-byte control words: the only loads and stores that two processes race on
ring        one writer process, one reader process, entries in between
doorbell    wakes a process that sleeps
counters    what every process shows of itself, and what the supervisor tells all of them
positions   where each log ends, kept for the successor of a dead process
"""
