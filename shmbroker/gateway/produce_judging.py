"""Judges which batches of a decoded Produce may be stored, and what the others are refused with.

In Kafka's order, first of the request, then of each partition:

   A  the form of the records                 E  the partition's own batch
   B  the right to the transactional id       F  acks
   C  the right to the topic                  G  whether the topic is for clients
   D  whether the partition is there          H  whether its broker is up

Rules of this file:
* Kafka looks at the first batch of each partition until it finds one of a transaction: a length
  under 14 or a magic over 2 there refuses the whole request with CORRUPT_MESSAGE, elsewhere its
  partition alone.
* All batches of transactions in one request are of one producer, or the whole request is refused.
* A partition named twice in one request is stored twice, in the order of the request.
"""

from __future__ import annotations

from typing import Protocol

from shmbroker.apis.table import PRODUCE
from shmbroker.gateway.produce_many import TOPIC_IDS_FROM, ZSTD_FROM
from shmbroker.ids import partition_key
from shmbroker.records.batch import split_frame
from shmbroker.records.batch_layout import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_BIT,
    ZSTD,
)
from shmbroker.security.acls import TOPIC, TRANSACTIONAL_ID, WRITE
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.gateway.guard import Guard
    from shmbroker.gateway.produce import ProduceRequest
    from shmbroker.metadata.image import TopicImage

NAME = PRODUCE.NAME
_ATTRIBUTES_AT = ATTRIBUTES_POSITION + 1
_PRODUCER_ID = slice(PRODUCER_ID_POSITION, PRODUCER_ID_POSITION + 8)
_TWO_PRODUCERS = "Transactional records contained more than one producer ID"


class Judges(Protocol):
    """What is asked for rights, and which topics there are."""

    guard: Guard | None

    def topic_of(self, topic: Mapping[str, Any], by_id: bool) -> TopicImage | None: ...


def judge(
    judges: Judges, request: ProduceRequest, body: dict[str, Any], is_admin: bool
) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], bytes, memoryview]]]:
    """Topics of the answer, filled in where something is refused; and the batches that may be
    stored, each with its row of the answer and its partition's key."""
    connection, version = request.connection, request.api_version
    topics: list[dict[str, Any]] = []
    appends: list[tuple[dict[str, Any], bytes, memoryview]] = []
    refusal, errors, is_of_transaction = _judge_form(body, version)  # A
    guard = judges.guard
    # B
    if (
        guard is not None
        and not refusal
        and is_of_transaction
        and not guard.may(connection, NAME, WRITE, TRANSACTIONAL_ID, body["transactional_id"])
    ):
        refusal = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    form_errors = iter(errors)
    for topic in body["topic_data"]:
        if not topic["partition_data"]:
            continue
        answers: list[dict[str, Any]] = []
        topics.append(
            {
                "name": topic["name"],
                "topic_id": topic["topic_id"],
                "partition_responses": answers,
            }
        )
        image = judges.topic_of(topic, version >= TOPIC_IDS_FROM)
        name = image.name if image is not None else topic["name"]
        is_forbidden = (
            guard is not None and name and not guard.may(connection, NAME, WRITE, TOPIC, name)
        )
        for partition in topic["partition_data"]:
            records = partition["records"]
            answer = {"index": partition["index"], "base_offset": -1, "log_append_time_ms": -1}
            answers.append(answer)
            form_error = next(form_errors, 0)
            if refusal:  # A, B
                answer["error_code"] = refusal
                if refusal != error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    answer["error_message"] = error_codes.message_of(refusal)
            elif is_forbidden:  # C
                answer["error_code"] = error_codes.TOPIC_AUTHORIZATION_FAILED
            elif image is None:  # D
                answer["error_code"] = (
                    error_codes.UNKNOWN_TOPIC_ID
                    if version >= TOPIC_IDS_FROM
                    else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                )
            elif not 0 <= partition["index"] < len(image.partitions):
                answer["error_code"] = error_codes.UNKNOWN_TOPIC_OR_PARTITION
            elif form_error:  # E
                answer["error_code"] = form_error
            elif not -1 <= request.acks <= 1:  # F
                answer["error_code"] = error_codes.INVALID_REQUIRED_ACKS
            elif image.is_internal and not is_admin:  # G
                answer["error_code"] = error_codes.INVALID_TOPIC_EXCEPTION
            elif request.peer is None:  # H
                answer["error_code"] = error_codes.NOT_LEADER_OR_FOLLOWER
            else:
                answer["error_code"] = error_codes.NONE
                key = partition_key(image.topic_id, partition["index"])
                appends.append((answer, key, records))
    if is_of_transaction and _has_two_producers(appends):
        for topic in topics:
            for answer in topic["partition_responses"]:
                answer["error_code"] = error_codes.INVALID_PRODUCER_ID_MAPPING
                answer["error_message"] = _TWO_PRODUCERS
        return topics, []
    return topics, appends


def _judge_form(body: dict[str, Any], version: int) -> tuple[int, list[int], bool]:
    """(the error code that every partition of the request gets, or 0; each one's own; whether there
    is a batch of a transaction: only then the transactional id counts).

    By the form of the records alone, which Kafka looks at before anything else.
    """
    is_transactional = body["transactional_id"] is not None
    has_found_one = False
    errors: list[int] = []
    for topic in body["topic_data"]:
        for partition in topic["partition_data"]:
            records = partition["records"]
            error = error_codes.INVALID_RECORD
            if records is not None:
                error, batch_end = split_frame(records, 0, len(records))
                if error == error_codes.CORRUPT_MESSAGE and not batch_end and not has_found_one:
                    return error, errors, False
                if batch_end and records[MAGIC_POSITION] == MAGIC:
                    attributes = records[_ATTRIBUTES_AT]
                    if attributes & TRANSACTIONAL_BIT:
                        has_found_one = True
                        if not is_transactional:
                            error = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                            return error, errors, True
                    if version < ZSTD_FROM and attributes & COMPRESSION_MASK == ZSTD:
                        error = error_codes.UNSUPPORTED_COMPRESSION_TYPE
            errors.append(error)
    return 0, errors, has_found_one


def _has_two_producers(appends: list[tuple[dict[str, Any], bytes, memoryview]]) -> bool:
    """Whether batches of transactions are of several producers."""
    producers = {
        bytes(records[_PRODUCER_ID])
        for _, _, records in appends
        if len(records) >= HEADER_SIZE and records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
    }
    return sum(each[0] < 128 for each in producers) > 1  # below 0 it is nobody
