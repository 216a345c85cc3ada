"""The answers to an APPEND: it is in the log, or it was refused."""

from __future__ import annotations

from shmbroker.ipc.operation_layout import APPENDED, APPENDED_HEAD, pack_record_errors
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmbroker.ipc.peer import Peer
    from shmbroker.replica.partition import Partition

_JUDGED_BEFORE_THE_LOG = (
    error_codes.CORRUPT_MESSAGE,
    error_codes.MESSAGE_TOO_LARGE,
    error_codes.UNSUPPORTED_COMPRESSION_TYPE,
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def answer(
    peer: Peer, token: int, base_offset: int, append_time: int, log_start_offset: int
) -> None:
    """Answer an append that is (or was already) in the log."""
    peer.send(
        APPENDED,
        APPENDED_HEAD.pack(token, 0, 0, 0, base_offset, append_time, log_start_offset),
    )


def refuse(
    peer: Peer,
    token: int,
    error_code: int,
    detail: str | None,
    record_errors: Sequence[tuple[int, str]] = (),
    partition: Partition | None = None,
) -> None:
    """Answer an append that was not stored; with the log start if the log has looked at it."""
    text = detail.encode()[:1024] if detail is not None else b""
    count, errors = 0, b""
    if record_errors:
        room = peer.writer.payload_bytes_max - APPENDED_HEAD.size - len(text)
        count, errors = pack_record_errors(record_errors, room)
    start = -1
    if partition is not None and error_code not in _JUDGED_BEFORE_THE_LOG:
        start = partition.log.log_start_offset
    head = APPENDED_HEAD.pack(token, error_code, len(text), count, -1, -1, start)
    peer.send(APPENDED, head + text + errors)
