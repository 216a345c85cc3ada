"""How many partitions clients may have made and deleted (KIP-599): tokens in buckets.

A bucket fills with `controller_mutation_rate` tokens a second, up to what comes in all windows, and
each partition takes one. It may be overdrawn by the request that empties it; the next one waits.

   strict       refused with THROTTLING_QUOTA_EXCEEDED while the bucket is overdrawn
   permissive   older versions, which do not know that error: done all the same

Either says for how long its client should wait, and the network worker does not read from it until
then. Source: Kafka's ControllerMutationQuotaManager, TokenBucket. Pure. Buckets are lost with the
active controller; those of its successor are full.
"""

from __future__ import annotations

import math
from hashlib import blake2b

from shmbroker.metadata.quota_image import CONTROLLER_MUTATION_RATE
from shmbroker.security.quotas import quota_of
from shmbroker.shm.quota_counts import whole_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.metadata.quota_image import Quotas

STRICT_FROM: Mapping[str, int] = {"CreateTopics": 6, "DeleteTopics": 5, "CreatePartitions": 3}
"""What is counted, and the first version that is refused."""

BUCKETS_MAX = 4096
"""Where more clients ask, those that were idle for the longest time begin with full buckets."""


class Bucket:
    """What one client has left."""

    __slots__ = ("tokens", "updated_s")

    def __init__(self, tokens: float, now_s: float) -> None:
        self.tokens = tokens
        self.updated_s = now_s

    def fill(self, rate: float, most: float, now_s: float) -> None:
        """Add what has come in since it was looked at last."""
        self.tokens = min(most, self.tokens + rate * max(0.0, now_s - self.updated_s))
        self.updated_s = max(self.updated_s, now_s)


def place_of(user: str, client_id: str) -> bytes:
    """What stands for a client here: few bytes, as a client id may have 32 KiB."""
    return blake2b(repr((user, client_id)).encode(errors="surrogatepass"), digest_size=16).digest()


class Mutations:
    """The changes of one request; without a bucket they are not bounded."""

    __slots__ = ("_bucket", "_is_strict", "_rate", "_taken", "throttle_ms")

    def __init__(
        self, bucket: Bucket | None = None, rate: float = 0.0, is_strict: bool = False
    ) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self._taken = 0
        self.throttle_ms = 0
        """How long the client is to wait before it asks again."""

    def allows(self, partitions: int) -> bool:
        """Whether so many may be made or deleted now; then they are counted."""
        bucket = self._bucket
        if bucket is None:
            return True
        if self._is_strict and bucket.tokens < 0:
            self._note(bucket.tokens)
            return False
        bucket.tokens -= partitions
        self._taken += partitions
        if not self._is_strict and bucket.tokens < 0:
            self._note(bucket.tokens)
        return True

    def begin_anew(self) -> None:
        """The request is decided once more: what was counted for it is not."""
        if self._bucket is not None:
            self._bucket.tokens += self._taken
        self._taken = self.throttle_ms = 0

    def _note(self, tokens: float) -> None:
        self.throttle_ms = whole_ms(-tokens / self._rate * 1000)


UNBOUNDED = Mutations()


class MutationQuotas:
    """The buckets of one controller."""

    def __init__(self, windows: int, window_s: int) -> None:
        """Take the values of `controller.quota.window.num` and
        `controller.quota.window.size.seconds`."""
        self._seconds = windows * window_s
        self._buckets: dict[bytes, Bucket] = {}
        """By `place_of` a client."""

    def of(
        self,
        quotas: Quotas,
        api_name: str,
        version: int,
        principal: str,
        client_id: bytes,
        now_s: float,
    ) -> Mutations:
        """What a request of this client may change. `now_s`: of a clock that never goes back."""
        if not quotas or api_name not in STRICT_FROM:
            return UNBOUNDED
        user, name = principal.partition(":")[2], client_id.decode(errors="replace")
        held = quota_of(quotas, CONTROLLER_MUTATION_RATE, user, name)
        if held is None or not 0 < held.bound < math.inf:
            return UNBOUNDED
        most = held.bound * self._seconds
        place = place_of(held.user, held.client_id)
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._forget()
            bucket = self._buckets[place] = Bucket(most, now_s)
        bucket.fill(held.bound, most, now_s)
        return Mutations(bucket, held.bound, version >= STRICT_FROM[api_name])

    def _forget(self) -> None:
        buckets = self._buckets
        idlest = sorted(buckets, key=lambda place: buckets[place].updated_s)
        for place in idlest[: BUCKETS_MAX // 2]:
            del buckets[place]
