"""The life of delegation tokens against a model that keeps of each when it ends, and whose it is.

Principals ask for tokens, renew and end each other's, show HMACs that never were, and come with a
token themselves; time passes, and the sweep comes now and then. All the while: nobody gets a token,
or keeps one alive, who may not; none outlives what it was given; what the sweep takes had expired.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shmbroker.controller.decisions import tokens as decisions
from shmbroker.metadata.draft import applied
from shmbroker.metadata.image import MetadataImage
from shmbroker.security.identity import Identity
from shmbroker.security.tokens import TokenKey
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    NONE,
)
from shmbroker.wire.metadata_records import decode_metadata_record, encode_metadata_record
from tests.support.examples import examples

LIFETIME_MS, RENEWAL_MS = 1000, 300
RULES = decisions.TokenRules(TokenKey("key"), LIFETIME_MS, RENEWAL_MS)
NAMES = st.sampled_from(("alice", "bob", "carol"))
PERIODS = st.sampled_from((-1, 0, 1, 100, 299, 301, 900, 5000, (1 << 63) - 1))


class Known(NamedTuple):
    """What the model knows of a token."""

    hmac: bytes
    owner: str
    renewers: frozenset[str]
    expires_ms: int
    last_ms: int


class TokenMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage("cluster")
        self.now_ms = 10_000
        self.known: dict[str, Known] = {}
        self.gone: list[bytes] = []
        self.count = 0

    def who(self, name: str, is_by_token: bool = False) -> Identity:
        return Identity(f"User:{name}", "127.0.0.1", "L", is_by_token)

    def apply(self, records: list[Any]) -> None:
        end = self.image.offset + len(records)
        rows = [
            (self.image.offset + at, 1, *decode_metadata_record(encode_metadata_record(*record)))
            for at, record in enumerate(records)
        ]
        self.image, _ = applied(self.image, rows, end, 1)

    def new_id(self) -> str:
        self.count += 1
        return f"token-{self.count}"

    @property
    def tokens(self) -> dict[str, Any]:
        return self.image.security.tokens

    @rule(name=NAMES, owner=st.none() | NAMES, renewers=st.lists(NAMES, max_size=2), ms=PERIODS)
    def create(self, name: str, owner: str | None, renewers: list[str], ms: int) -> None:
        request = {
            "owner_principal_type": "User",
            "owner_principal_name": owner,
            "renewers": [{"principal_type": "User", "principal_name": each} for each in renewers],
            "max_lifetime_ms": ms,
        }
        records, answer = decisions.create_token(
            request, 3, self.who(name), RULES, self.now_ms, self.new_id
        )
        self.apply(records)
        last_ms = self.now_ms + (min(ms, LIFETIME_MS) if ms > 0 else LIFETIME_MS)
        known = Known(
            answer["hmac"],
            owner or name,
            frozenset(renewers),
            min(last_ms, self.now_ms + RENEWAL_MS),
            last_ms,
        )
        self.known[answer["token_id"]] = known
        assert answer["error_code"] == NONE
        assert answer["principal_name"] == known.owner
        assert answer["expiry_timestamp_ms"] == known.expires_ms

    @rule(name=NAMES)
    def create_with_a_token(self, name: str) -> None:
        request = {"owner_principal_name": None, "renewers": [], "max_lifetime_ms": -1}
        records, answer = decisions.create_token(
            request, 3, self.who(name, True), RULES, self.now_ms, self.new_id
        )
        assert not records and not answer["hmac"]
        assert answer["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    @rule(data=st.data(), name=NAMES, is_by_token=st.booleans(), ms=PERIODS)
    def renew(self, data: st.DataObject, name: str, is_by_token: bool, ms: int) -> None:
        token_id, shown = self.choose(data)
        known = self.known.get(token_id or "")
        records, answer = decisions.renew_token(
            {"hmac": shown, "renew_period_ms": ms},
            self.who(name, is_by_token),
            self.tokens,
            RULES,
            self.now_ms,
        )
        self.apply(records)
        if is_by_token:
            expected = DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        elif known is None:
            expected = DELEGATION_TOKEN_NOT_FOUND
        elif self.now_ms > known.expires_ms:
            expected = DELEGATION_TOKEN_EXPIRED
        elif name != known.owner and name not in known.renewers:
            expected = DELEGATION_TOKEN_OWNER_MISMATCH
        else:
            expected = NONE
            period = min(ms, RENEWAL_MS) if ms > 0 else RENEWAL_MS
            until = min(known.last_ms, self.now_ms + period)
            self.known[token_id or ""] = known._replace(expires_ms=until)
            assert answer["expiry_timestamp_ms"] == until
        assert answer["error_code"] == expected

    @rule(data=st.data(), name=NAMES, is_by_token=st.booleans(), ms=PERIODS)
    def expire(self, data: st.DataObject, name: str, is_by_token: bool, ms: int) -> None:
        token_id, shown = self.choose(data)
        known = self.known.get(token_id or "")
        records, answer = decisions.expire_token(
            {"hmac": shown, "expiry_time_period_ms": ms},
            self.who(name, is_by_token),
            self.tokens,
            RULES,
            self.now_ms,
        )
        self.apply(records)
        if is_by_token:
            expected = DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        elif known is None:
            expected = DELEGATION_TOKEN_NOT_FOUND
        elif name != known.owner and name not in known.renewers:
            expected = DELEGATION_TOKEN_OWNER_MISMATCH
        elif ms < 0:
            expected = NONE
            self.forget(token_id or "")
        elif self.now_ms > known.expires_ms:
            expected = DELEGATION_TOKEN_EXPIRED
        else:
            expected = NONE
            until = min(known.last_ms, self.now_ms + ms)
            self.known[token_id or ""] = known._replace(expires_ms=until)
        assert answer["error_code"] == expected

    def choose(self, data: st.DataObject) -> tuple[str | None, bytes]:
        """A token that is there, one that was, or one that never was; and its HMAC."""
        shown: list[tuple[str | None, bytes]] = [
            *((token_id, known.hmac) for token_id, known in self.known.items()),
            *((None, hmac) for hmac in self.gone[-2:]),
            (None, b"never was"),
        ]
        return data.draw(st.sampled_from(shown))

    def forget(self, token_id: str) -> None:
        self.gone.append(self.known.pop(token_id).hmac)

    @rule(ms=st.integers(1, 400))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def sweep(self) -> None:
        self.apply(decisions.expired_tokens(self.tokens, self.now_ms))
        for token_id, known in list(self.known.items()):
            if self.now_ms > known.expires_ms:
                self.forget(token_id)

    @invariant()
    def tokens_are_those_of_the_model(self) -> None:
        assert list(self.tokens) == list(self.known)
        for token_id, token in self.tokens.items():
            known = self.known[token_id]
            assert token.owner == f"User:{known.owner}"
            assert token.expires_ms == known.expires_ms <= token.max_ms == known.last_ms
            assert token.max_ms <= token.issued_ms + LIFETIME_MS


TestTokens = TokenMachine.TestCase
TestTokens.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
