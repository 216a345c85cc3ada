"""Delegation tokens in a controller: kept over a start, and swept away when they have expired."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from controller_at_work import NOW_MS, Start

from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.raft.metadata_log import MetadataLog
from shmbroker.ids import random_uuid, uuid_text
from shmbroker.log.faults import DiskFullFault
from shmbroker.metadata.image_records import image_records
from shmbroker.security.identity import Identity
from shmbroker.wire.error_codes import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    KAFKA_STORAGE_ERROR,
    NONE,
)

ALICE = Identity("User:alice", "127.0.0.1", "SASL_PLAINTEXT")
SETTINGS = {
    "delegation_token_secret_key": "k",
    "delegation_token_expiry_time_ms": "1000",
    "delegation_token_expiry_check_interval_ms": "60000",
}


def create(
    controller: ActiveController, now_ms: int = NOW_MS, who: Identity = ALICE
) -> dict[str, Any]:
    request = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime_ms": -1,
    }
    return controller.handle("CreateDelegationToken", 3, request, now_ms, who)


def test_a_token_is_there_at_the_next_start_and_in_a_snapshot(start: Start) -> None:
    first = start(**SETTINGS)
    made = create(first)
    assert made["error_code"] == NONE
    first.close()
    again = start(**SETTINGS)
    token = again.image.security.tokens[made["token_id"]]
    assert (token.owner, token.expires_ms) == ("User:alice", NOW_MS + 1000)
    names = [name for name, _, _ in image_records(again.image, [])]
    assert names.count("DelegationTokenRecord") == 1
    renewal = {"hmac": made["hmac"], "renew_period_ms": 500}
    answer = again.handle("RenewDelegationToken", 2, renewal, NOW_MS + 900, ALICE)
    assert answer == {"error_code": NONE, "expiry_timestamp_ms": NOW_MS + 1400}
    assert again.image.security.tokens[made["token_id"]].expires_ms == NOW_MS + 1400


def test_without_the_key_tokens_stay_and_prove_nothing(start: Start) -> None:
    first = start(**SETTINGS)
    made = create(first)
    first.close()
    without = start()
    assert made["token_id"] in without.image.security.tokens
    assert create(without)["error_code"] == DELEGATION_TOKEN_AUTH_DISABLED
    without.due.sweep_tokens(0.0, NOW_MS + 10_000)
    without.due.sweep_tokens(10_000.0, NOW_MS + 10_000)
    assert made["token_id"] in without.image.security.tokens
    without.close()
    other = start(**SETTINGS | {"delegation_token_secret_key": "other"})
    renewal = {"hmac": made["hmac"], "renew_period_ms": -1}
    answer = other.handle("RenewDelegationToken", 2, renewal, NOW_MS, ALICE)
    assert answer["error_code"] == DELEGATION_TOKEN_NOT_FOUND


def test_the_id_of_a_token_is_drawn_as_that_of_a_topic(start: Start) -> None:
    controller = start(**SETTINGS)
    drawn = random_uuid()
    controller.log.new_uuid = lambda: drawn
    assert create(controller)["token_id"] == uuid_text(drawn)


def test_nobody_gets_the_proof_of_a_token_that_does_not_come_to_be(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise DiskFullFault(os.strerror(errno.ENOSPC))

    controller = start(**SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(MetadataLog, "append", full)
        answer = create(controller)
    assert answer["error_code"] == KAFKA_STORAGE_ERROR
    assert (answer["token_id"], answer["hmac"]) == ("", b"")


def test_a_process_of_the_family_gets_no_token(start: Start) -> None:
    controller = start(**SETTINGS)
    request = {"owner_principal_name": None, "renewers": [], "max_lifetime_ms": -1}
    answer = controller.handle("CreateDelegationToken", 2, request, NOW_MS)
    assert answer["error_code"] == DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_what_has_expired_is_swept_away_once_in_a_while(start: Start) -> None:
    controller = start(**SETTINGS)
    gone = create(controller)["token_id"]
    kept = create(controller, NOW_MS + 5000)["token_id"]
    tokens = controller.image.security.tokens
    controller.due.sweep_tokens(0.0, NOW_MS + 5000)
    controller.due.sweep_tokens(59.0, NOW_MS + 5000)
    assert list(controller.image.security.tokens) == [gone, kept]
    controller.due.sweep_tokens(60.0, NOW_MS + 5000)
    assert list(controller.image.security.tokens) == [kept]
    assert list(tokens) == [gone, kept], "an image is never changed"
    controller.due.sweep_tokens(119.0, NOW_MS + 9000)
    assert list(controller.image.security.tokens) == [kept]
    controller.due.sweep_tokens(120.0, NOW_MS + 9000)
    assert not controller.image.security.tokens
