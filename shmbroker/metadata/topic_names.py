"""The names that a topic may have, and the topics that belong to Kafka itself.

Rules of Kafka's `org.apache.kafka.common.internals.Topic`, its words included: clients show them.
"""

TOPIC_NAME_CHARACTERS_MAX = 249
"""A directory's name is at most 255 bytes long and also holds "-" and the partition number."""

METADATA_TOPIC = "__cluster_metadata"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"

INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTION_TOPIC, SHARE_STATE_TOPIC))

_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def topic_name_complaint(name: str) -> str | None:
    """What is wrong with a topic's name (INVALID_TOPIC_EXCEPTION); None: nothing."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
            f"length {TOPIC_NAME_CHARACTERS_MAX}"
        )
    if not _ALLOWED.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Two names with the same key can't both be topics: metric names make no difference between
    "." and "_"."""
    return name.replace(".", "_")
