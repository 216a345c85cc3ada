"""What everybody knows of the cluster: brokers, topics, partitions, configs, features.

One process writes the metadata log (`controller`); every process reads its files up to the
committed offset (`log_reader`), keeps an immutable `image` of it and learns what changed
(`follower`).
"""
