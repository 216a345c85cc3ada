"""Pages of records, single ones, searches and live tails: what these paths answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from shmbroker.client.addresses import Address
from shmbroker.client.reader.asking import EARLIEST, LATEST
from shmbroker.console import shown
from shmbroker.console.access import HttpRequest
from shmbroker.console.answers import (
    TEXT_MAX,
    BadRequest,
    EventStream,
    HttpAnswer,
    as_json,
    is_number,
    number_of,
    refused,
    text_of,
)
from shmbroker.console.messages import At, Messages, SearchProgress, Wanted
from shmbroker.console.topic_reader import PARTITIONS_MAX
from shmbroker.errors import Fault

ANSWER_BYTES = 4 << 20
MESSAGE_BYTES = 1 << 20
"""The bytes of each field of one record that is shown alone."""
STREAMS_MAX = 6
_WHERES = ("any", "key", "value", "header")


class RecordPages:
    """Answers them; for any thread."""

    def __init__(
        self, bootstrap: Sequence[Address], topic_of: Callable[[HttpRequest], str]
    ) -> None:
        """topic_of: the topic that a request names; BadRequest where there is none."""
        self._bootstrap = list(bootstrap)
        self._topic_of = topic_of
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)

    def open(self, request: HttpRequest) -> Messages:
        """The topic that a request names; closed by the caller."""
        partition = number_of(request, "partition", -1)
        is_committed = request.query.get("isolation") == "read_committed"
        name = self._topic_of(request)
        return Messages(self._bootstrap, name, None if partition < 0 else partition, is_committed)

    def messages(self, request: HttpRequest) -> HttpAnswer:
        """A page of records."""
        is_back = request.query.get("direction") == "back"
        at, count = _place(request), number_of(request, "count", 50)
        with self.open(request) as messages:
            page = messages.page(at, count, is_back)
        room = shown.AnswerRoom(ANSWER_BYTES)
        return as_json(
            {
                "records": [shown.record(number, row, room) for number, row in page.records],
                "following": _as_text(page.following),
                "is_bounded": page.is_bounded,
                "left_out": page.left_out,
                "starts": page.starts,
                "ends": page.ends,
            }
        )

    def message(self, request: HttpRequest) -> HttpAnswer:
        """One record, whole."""
        partition, offset = number_of(request, "partition", -1), number_of(request, "offset", -1)
        if partition < 0 or offset < 0:
            raise BadRequest("a record is named by partition and offset")
        with self.open(request) as messages:
            page = messages.page({partition: offset}, 1, is_back=False)
        if not page.records or page.records[0][1][0] != offset:
            return refused(404, f"there is no record at offset {offset} (any more)")
        room = shown.AnswerRoom(ANSWER_BYTES)
        return as_json(shown.record(partition, page.records[0][1], room, MESSAGE_BYTES))

    def search(self, request: HttpRequest) -> HttpAnswer | EventStream:
        """Records with a text, as they are found."""
        text = text_of(request, "text").encode("utf-8", "surrogatepass")
        where = request.query.get("in", "any")
        if where not in _WHERES:
            raise BadRequest(f"in is one of {', '.join(_WHERES)}")
        if request.query.get("hex") == "1":
            try:
                text = bytes.fromhex(text.decode())
            except ValueError:
                raise BadRequest("these are no bytes in hex") from None
        is_exact = request.query.get("case") == "1" or request.query.get("hex") == "1"
        wanted = Wanted(text, where, not is_exact, number_of(request, "count", 50))
        at = _place(request)
        return self._stream(request, lambda messages: messages.search(wanted, at))

    def tail(self, request: HttpRequest) -> HttpAnswer | EventStream:
        """Records as they are appended."""
        text = request.query.get("text", "")[:TEXT_MAX].encode("utf-8", "surrogatepass")
        return self._stream(request, lambda messages: messages.tail(text))

    def _stream(
        self, request: HttpRequest, begin: Callable[[Messages], Iterator[At | SearchProgress]]
    ) -> HttpAnswer | EventStream:
        if not self._streams.acquire(blocking=False):
            return refused(503, f"{STREAMS_MAX} searches and live tails run already: end one")
        try:
            messages = self.open(request)
        except BaseException:
            self._streams.release()
            raise

        def close() -> None:
            messages.close()
            self._streams.release()

        return EventStream(_streamed(messages, begin), close)


def _streamed(
    messages: Messages, begin: Callable[[Messages], Iterator[At | SearchProgress]]
) -> Iterator[tuple[str, object]]:
    try:
        yield "opened", {"partitions": len(messages.partitions)}
        for found in begin(messages):
            if isinstance(found, SearchProgress):
                yield "progress", found._asdict() | {"following": _as_text(found.following)}
            else:
                yield "record", shown.record(*found, shown.AnswerRoom(ANSWER_BYTES))
    except (Fault, OSError) as fault:
        yield "failed", {"error": str(fault)}


def _place(request: HttpRequest) -> dict[int, int] | int:
    """Where to begin: from=earliest, from=latest, time=MS, or at=PARTITION:OFFSET,…"""
    query = request.query
    if "at" in query:
        try:
            return dict(parse_offsets(query["at"]))
        except ValueError as bad:
            raise BadRequest(str(bad)) from None
    if "time" in query:
        return number_of(request, "time", 0)
    start = query.get("from", "latest")
    if start not in ("earliest", "latest"):
        raise BadRequest("from is earliest or latest")
    return EARLIEST if start == "earliest" else LATEST


def _as_text(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in offsets.items())


def parse_offsets(text: str) -> Mapping[int, int]:
    """ "0:12,1:7" as partitions and offsets; ValueError if it is none."""
    found = {}
    for pair in text.split(",")[:PARTITIONS_MAX]:
        partition, _, offset = pair.partition(":")
        if not (is_number(partition) and is_number(offset)):
            raise ValueError(f"{pair[:40]} is not PARTITION:OFFSET")
        found[int(partition)] = int(offset)
    return found
