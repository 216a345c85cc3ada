"""A client of a simulated family that deletes records (KIP-107)."""

from __future__ import annotations

from shmbroker.wire import error_codes
from tests.simulation.family.clients import RETRIED, FamilyClient, check_retried
from tests.simulation.family.network import Disconnected, Script

AT_ONCE = 30
"""The most offsets of one request."""
REFUSED = frozenset((error_codes.OFFSET_OUT_OF_RANGE,))
"""A new leader may not know yet that so much is committed."""


class Deleter(FamilyClient):
    """Deletes the first records of partitions, a few each time."""

    def script(self) -> Script:
        while not self.is_told_to_end:
            yield self.pause(0.02, 0.6)
            if not self.seen.places:
                continue
            place = self.random.choice(self.seen.places)
            first = self.seen.deleted(place)
            end = min(self.seen.watermark(place), first + AT_ONCE)
            if end <= first:
                continue
            offset = self.random.randrange(first, end) + 1
            port = yield from self.leader(place)
            row = {"partition_index": place[1], "offset": offset}
            timeout_ms = self.random.choice((0, 100, 1500))
            body = {
                "topics": [{"name": place[0], "partitions": [row]}],
                "timeout_ms": timeout_ms,
            }
            self.seen.on_delete_asked(place, offset)
            try:
                answer = yield from self.ask(port, "DeleteRecords", 1, body)
            except Disconnected:
                self.leaders.pop(place, None)
                continue
            row = answer["topics"][0]["partitions"][0]
            if row["error_code"]:
                check_retried(row["error_code"], "DeleteRecords", RETRIED | REFUSED)
                self.leaders.pop(place, None)
                continue
            assert row["low_watermark"] >= offset, f"{place}: {row}, and {offset} was asked for"
            self.say(f"{place[0]}-{place[1]} is deleted below {row['low_watermark']}")
            self.seen.on_deleted(place, row["low_watermark"])
