"""The metadata log and its voters: KRaft, quorum, snapshots."""
