"""The asker of a request, and what may come of it: the types of the rules in this package.

A rule looks at a decoded request, before anybody acts on it:

   None       all of it is allowed: it goes on as it came
   Refused    nothing of it is: the answer
   Partly     a part is: the request without the rest, or None for as it came, and what has to be
              done to the answer (rows that were refused, rows that may not be seen)

So who answers knows nothing of rights, and a broker without an authorizer never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from shmbroker.metadata.image import MetadataImage
from shmbroker.security.acls import CLUSTER, CLUSTER_NAME, GROUP, TOPIC, TRANSACTIONAL_ID
from shmbroker.security.authorizer import Authorizer
from shmbroker.wire.error_codes import CLUSTER_AUTHORIZATION_FAILED

Message = dict[str, Any]
Row = TypeVar("Row")
"""What a request has a list of: messages, or names."""


class Refused(NamedTuple):
    """Nothing of the request is done; the answer says so."""

    answer: Message


class Partly(NamedTuple):
    """Something is taken from the request, or changed in its answer."""

    body: Message | None
    """None: as it came."""
    after: Callable[[Message], Message]


Outcome = Refused | Partly | None
Rule = Callable[["Asker", int, Message], Outcome]
"""Takes the asker, the version, and the decoded request."""


class Asker(NamedTuple):
    """A client of one connection, under the ACLs of one image."""

    principal: str
    host: str
    authorizer: Authorizer
    image: MetadataImage
    may_have_tokens: bool = True
    """Whether it is a connection on which delegation tokens are answered about."""

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether it may do this."""
        return self.authorizer.allows(self.principal, self.host, operation, resource_type, name)

    def may_topic(self, operation: int, name: str) -> bool:
        """Whether it may do this with a topic."""
        return self.may(operation, TOPIC, name)

    def may_row(self, operation: int, row: Message) -> bool:
        """Whether it may do this with the topic that a row names or gives the id of. One that is
        not there is nobody's secret."""
        name = self.name_of(row)
        return name is None or self.may_topic(operation, name)

    def may_group(self, operation: int, name: str) -> bool:
        """Whether it may do this with a group."""
        return self.may(operation, GROUP, name)

    def may_transact(self, operation: int, name: str) -> bool:
        """Whether it may do this with a transactional id."""
        return self.may(operation, TRANSACTIONAL_ID, name)

    def may_cluster(self, operation: int) -> bool:
        """Whether it may do this with the cluster."""
        return self.may(operation, CLUSTER, CLUSTER_NAME)

    def operations(self, resource_type: int, name: str) -> int:
        """What it may do with a resource, as bits; needs DESCRIBE of whoever asks."""
        return self.authorizer.operations(self.principal, self.host, resource_type, name)

    def name_of(self, topic: Message) -> str | None:
        """The name of a topic that a request names, or gives the id of; None: there is none."""
        if topic.get("name"):
            return str(topic["name"])
        found = self.image.topics_by_id.get(topic.get("topic_id", b""))
        return found.name if found is not None else None


def needs_cluster(operation: int, answer: Callable[[int, Message, int], Message]) -> Rule:
    """A rule for what one operation of the cluster opens as a whole. answer(version, request,
    error): what is said without it."""

    def rule(asker: Asker, version: int, body: Message) -> Outcome:
        if asker.may_cluster(operation):
            return None
        return Refused(answer(version, body, CLUSTER_AUTHORIZATION_FAILED))

    return rule


def without(rows: list[Row], is_allowed: Callable[[Row], bool]) -> tuple[list[Row], list[Row]]:
    """(those that are allowed, those that are not)."""
    allowed: list[Row] = []
    refused: list[Row] = []
    for row in rows:
        (allowed if is_allowed(row) else refused).append(row)
    return allowed, refused


def partly(
    body: Message,
    key: str,
    is_allowed: Callable[..., bool],
    refused_row: Callable[..., Message],
    answer_key: str | None = None,
) -> Outcome:
    """The rows of a request under `key` that are not allowed are left out, and answered by
    `refused_row` behind the others, under `answer_key`."""
    allowed, refused = without(body[key] or [], is_allowed)
    if not refused:
        return None
    rows = [refused_row(row) for row in refused]
    where = answer_key or key
    if not allowed:
        return Refused({where: rows})

    def after(answer: Message) -> Message:
        answer[where] = [*answer[where], *rows]
        return answer

    return Partly(body | {key: allowed}, after)


def seen(key: str, is_seen: Callable[[Message], bool]) -> Partly:
    """The request goes on as it came; rows of its answer are left out."""

    def after(answer: Message) -> Message:
        answer[key] = [row for row in answer[key] if is_seen(row)]
        return answer

    return Partly(None, after)
