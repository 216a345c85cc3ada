"""Standing answers in groups of the new protocol: where nothing is new, until something is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.metadata.changes import ConfigChanged, MetadataChange, TopicCreated
from shmbroker.metadata.image import GROUP_RESOURCE, TopicImage
from tests.property.test_group_standing import Standing
from tests.unit.groups.office_at_work import FIELDS, Office, owned

SESSION_MS = 45_000


class GrantingOffice(Office):
    """With a table of standing answers; `stands` says whether a grant still holds."""

    def quiet(self, member: str, epoch: int, **more: Any) -> tuple[int, int] | None:
        assert "error_code" not in self.beat(member, epoch, **more)
        body = FIELDS | {"group_id": "g", "member_id": member, "member_epoch": epoch} | more
        return self.groups.consumers.grant(body, "client", "/host")

    def stands(self, grant: tuple[int, int] | None) -> bool:
        assert grant is not None
        return bool(self.standing.values[grant[0]] == grant[1])

    def on_image(self, *changes: MetadataChange) -> None:
        image = self.groups.consumers.topics.image
        image.offset += 1
        self.groups.consumers.on_image(image, changes)


@pytest.fixture
def office(tmp_path: Path) -> Iterator[GrantingOffice]:
    made = GrantingOffice(tmp_path)
    made.standing = Standing(lambda: made.now_ms)
    made.restart()
    yield made
    for partition in made.partitions:
        partition.log.close(clean=False)


def test_quiet_heartbeat_is_granted_once_and_again(office: GrantingOffice) -> None:
    office.enter("a")
    grant = office.quiet("a", 1)
    assert office.stands(grant)
    assert office.quiet("a", 1) == grant


@pytest.mark.parametrize(
    "news",
    [
        {"topic_partitions": []},
        {"subscribed_topic_names": ["t"]},
        {"rebalance_timeout_ms": 60_000},
        {"server_assignor": "range"},
        {"rack_id": "r"},
    ],
    ids=lambda news: next(iter(news)),
)
def test_heartbeat_that_says_something_is_not_granted(
    office: GrantingOffice, news: dict[str, Any]
) -> None:
    office.enter("a")
    body = FIELDS | {"group_id": "g", "member_id": "a", "member_epoch": 1} | news
    assert office.groups.consumers.grant(body, "client", "/host") is None


def test_member_that_is_subscribed_by_an_expression_is_asked_each_time(
    office: GrantingOffice,
) -> None:
    office.enter("a", subscribed_topic_names=[], subscribed_topic_regex="t+")
    assert office.quiet("a", office.group.members["a"].epoch) is None


def test_new_member_ends_the_grants_before_it_is_answered(office: GrantingOffice) -> None:
    office.enter("a")
    grant = office.quiet("a", 1)
    office.enter("b")
    assert not office.stands(grant)
    assert office.beat("a", 1)["assignment"] is not None


def test_leaving_member_ends_the_grants_of_all(office: GrantingOffice) -> None:
    office.enter("a")
    office.enter("b")
    office.beat("a", 1)
    office.beat("a", 1, topic_partitions=owned(0, 1))
    office.beat("b", 2)
    grants = [office.quiet("a", 2), office.quiet("b", 2)]
    assert all(map(office.stands, grants))
    office.beat("b", -1)
    assert not any(map(office.stands, grants))


def test_any_change_of_the_metadata_ends_them(office: GrantingOffice) -> None:
    office.enter("a")
    grant = office.quiet("a", 1)
    office.on_image(TopicCreated(TopicImage("new", b"n" * 16, ())))
    assert not office.stands(grant)
    office.beat("a", 1)
    grant = office.quiet("a", 1)
    office.on_image(ConfigChanged(GROUP_RESOURCE, "g"))
    assert not office.stands(grant)


def test_session_goes_on_with_answers_given_elsewhere_and_ends_without(
    office: GrantingOffice,
) -> None:
    office.enter("a")
    grant = office.quiet("a", 1)
    assert grant is not None
    for _ in range(30):
        office.wait(5000)
        assert office.stands(grant)
        office.standing.used[grant[0]] = office.now_ms
    office.wait(SESSION_MS - 1)
    assert list(office.group.members) == ["a"]
    office.wait(1)
    assert list(office.group.members) == []
    assert not office.stands(grant)


def test_classic_group_that_becomes_one_of_the_new_protocol_ends_its_grants(
    office: GrantingOffice,
) -> None:
    member = office.stable()
    assert office.heartbeat(member) == 0
    grant = office.grant
    assert office.stands(grant)
    assert "error_code" not in office.enter("a")
    assert not office.stands(grant)


def test_group_that_is_gone_from_here_ends_its_grants(office: GrantingOffice) -> None:
    office.enter("a")
    grant = office.quiet("a", 1)
    office.groups.close()
    assert not office.stands(grant)
