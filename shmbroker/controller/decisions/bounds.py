"""How much the metadata may hold: it would grow unnoticed until memory is used up everywhere.
Apache Kafka has no such bounds; what it bounds by request it refuses with POLICY_VIOLATION, and so
does this.

   shmbroker.metadata.partitions   partitions of all topics
   shmbroker.metadata.entries      ACLs; users of SCRAM; quotas; tokens; groups, subscriptions and
                                   other things with settings: so many of each

What changes or removes an entry is never refused. Pure.
"""

from __future__ import annotations

from shmbroker.metadata.image import TOPIC_RESOURCE
from shmbroker.metadata.quota_image import entity_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.metadata.record import MetadataRecord
    from shmbroker.settings.broker_config import BrokerConfig

PARTITIONS = "shmbroker.metadata.partitions"
ENTRIES = "shmbroker.metadata.entries"


def _config_key(message: dict[str, Any]) -> Hashable:
    key = message["resource_type"], message["resource_name"]
    return key if _counts(key) and message["value"] is not None else None


def _counts(resource: tuple[int, str]) -> bool:
    """Topics are bounded by themselves; "" is all brokers."""
    return resource[0] != TOPIC_RESOURCE and resource[1] != ""


def _quota_key(message: dict[str, Any]) -> Hashable:
    return None if message["remove"] else entity_of(message["entity"])


_KINDS: dict[
    str,
    tuple[
        str,
        Callable[[MetadataImage], Collection[Any]],
        Callable[[dict[str, Any]], Hashable],
    ],
] = {
    # By record: what it is called, those that are there, the key of one (None: it needs no room).
    "AccessControlEntryRecord": ("ACLs", lambda image: image.security.acls, lambda row: row["id"]),
    "UserScramCredentialRecord": (
        "passwords of users",
        lambda image: image.security.scram,
        lambda row: (row["name"], row["mechanism"]),
    ),
    "ClientQuotaRecord": ("quotas", lambda image: image.security.quotas, _quota_key),
    "DelegationTokenRecord": (
        "delegation tokens",
        lambda image: image.security.tokens,
        lambda row: row["token_id"],
    ),
    "ConfigRecord": (
        "groups, subscriptions and other resources with settings",
        lambda image: [key for key in image.configs if _counts(key)],
        _config_key,
    ),
}


def complaint(
    records: list[MetadataRecord], image: MetadataImage, config: BrokerConfig
) -> str | None:
    """A sentence where these records would make it too much; None: there is room."""
    new: dict[str, set[Hashable]] = {}
    partitions = 0
    for name, _, message in records:
        if name == "PartitionRecord":
            partitions += 1
        elif (kind := _KINDS.get(name)) is not None:
            new.setdefault(name, set()).add(kind[2](message))
    if partitions:
        most = config[PARTITIONS]
        if partitions > most - sum(len(each.partitions) for each in image.topics_by_id.values()):
            return f"There would be more than {most} partitions: {PARTITIONS} says so."
    for name, keys in new.items():
        title, there_are, _ = _KINDS[name]
        known = there_are(image)
        most = config[ENTRIES]
        if len(known) + len(keys) <= most:
            continue
        added = len(keys.difference(known) - {None})
        if added and len(known) + added > most:
            return f"There would be more than {most} {title}: {ENTRIES} says so."
    return None
