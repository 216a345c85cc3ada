"""An append that is in the log and not answered yet.

It waits for the disk (`group_commit`), for the in-sync replicas (`delayed_produce`), or for the one
and then the other. It is a plain tuple, as it stands on the path of every append with acks=all or
fsync: an object with named fields would double what is done for an ack.

    peer           the network worker that is answered
    token          of its APPEND
    partition
    base offset
    append time    of its records, in ms, where the topic has them stamped here; else -1
    end offset     the high watermark that it waits for
    deadline       until when it waits for that, in ms; 0: it waits for the disk alone
"""

from typing import Final

from shmbroker.ipc.peer import Peer
from shmbroker.replica.partition import Partition

WaitingAck = tuple[Peer, int, Partition, int, int, int, int]

# Places in it.
ACK_PEER: Final = 0
ACK_TOKEN: Final = 1
ACK_PARTITION: Final = 2
ACK_END_OFFSET: Final = 5
ACK_DEADLINE_MS: Final = 6
