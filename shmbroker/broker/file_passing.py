"""Passing the descriptors of segments to those who send slices of them.

A descriptor travels once over a Unix socket pair (`ipc.passed_files`), before the first slice of
its file is named on a ring. A socket pair that is full is tried again in the next turn. A file that
goes is taken back with DROP_FILE, so that its space is free.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from shmbroker.errors import StorageFault
from shmbroker.ipc.operation_layout import DROP_FILE, TOKEN
from shmbroker.ipc.passed_files import pass_file
from shmbroker.ipc.peer import Peer
from shmbroker.log.segment import Segment


class FilePassing:
    """What one I/O worker has passed to whom. peers: by slot; sockets: this end of each pair."""

    def __init__(
        self,
        peers: Mapping[int, Peer],
        sockets: Mapping[int, socket.socket],
        on_storage_fault: Callable[[StorageFault], object],
    ) -> None:
        """on_storage_fault: told that a descriptor that was asked for again can't be had."""
        self._peers = peers
        self._sockets = sockets
        self._passed: dict[int, set[int]] = {slot: set() for slot in peers}
        """File ids, by the slot of who has them."""
        self._segments: dict[int, Segment] = {}
        self.waiting: dict[tuple[int, int], Peer] = {}
        """(slot, file id) of descriptors for which a socket pair had no room."""
        self._on_storage_fault = on_storage_fault

    def pass_file(self, peer: Peer, segment: Segment) -> None:
        """Pass a segment's file before a slice of it is named for the first time. StorageFault if
        the disk refuses: then none is to be named."""
        file_id = segment.file_id
        if file_id not in self._passed[peer.slot]:
            self._pass(peer, file_id, segment)
            self._segments[file_id] = segment

    def pass_again(self, peer: Peer, file_id: int) -> None:
        """Pass a descriptor that was asked for, or say that the file is gone, or the disk does not
        give it: a reader that waits for it asks again."""
        segment = self._segments.get(file_id)
        if segment is not None:
            try:
                self._pass(peer, file_id, segment)
                return
            except StorageFault as fault:
                self._on_storage_fault(fault)
        peer.send(DROP_FILE, TOKEN.pack(file_id))

    def _pass(self, peer: Peer, file_id: int, segment: Segment) -> None:
        if pass_file(self._sockets[peer.slot], file_id, segment.fd):
            self._passed[peer.slot].add(file_id)
        else:
            self.waiting[peer.slot, file_id] = peer

    def pass_waiting(self) -> None:
        """Try again what the socket pairs had no room for; of each pair no more than it takes."""
        waiting, self.waiting = self.waiting, {}
        full: set[int] = set()
        for key, peer in waiting.items():
            slot, file_id = key
            if slot in full:
                self.waiting[key] = peer
                continue
            self.pass_again(peer, file_id)
            if key in self.waiting:
                full.add(slot)  # until somebody there takes in what lies in it
            else:
                peer.doorbell.ring_if_sleeping()

    def drop(self, file_ids: list[int]) -> None:
        """Have these files closed wherever they are open; the list is empty after."""
        while file_ids:
            file_id = file_ids.pop()
            self._segments.pop(file_id, None)
            for slot, passed in self._passed.items():
                if file_id in passed:
                    passed.discard(file_id)
                    if self._peers[slot].incarnation:
                        self._peers[slot].send(DROP_FILE, TOKEN.pack(file_id))

    def on_peer_lost(self, peer: Peer) -> None:
        """Forget what a peer was passed: its successor knows none of our files."""
        if peer.slot in self._passed:
            self._passed[peer.slot].clear()
            self.waiting = {key: to for key, to in self.waiting.items() if to is not peer}
