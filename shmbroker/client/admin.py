"""The few questions of the command line that confluent-kafka has no call for.

OffsetDelete, the settings of all brokers together (an empty resource name), levels of loggers,
client quotas, ACLs (it knows no users and tokens in them), delegation tokens, the quorum of
controllers, log directories, the brokers that are registered but fenced, and whether a topic
exists, where confluent-kafka is not installed. Each over a connection of its own, with the TLS and
SASL that its `Addresses` have.
Versions are those of `versions.PLAIN`; that of fenced brokers is known since Kafka 4.0.

Rules: an answer is waited for at most `ANSWER_S`; a cluster that doesn't give one is a
ClusterFault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shmbroker.client import faults
from shmbroker.client.addresses import Address, addresses_text, entered
from shmbroker.client.cluster import Cluster
from shmbroker.client.faults import ClusterFault, NoBrokerFault, RefusedFault
from shmbroker.client.retries import patiently
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_ACLS,
    CREATE_DELEGATION_TOKEN,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    EXPIRE_DELEGATION_TOKEN,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    OFFSET_DELETE,
    RENEW_DELEGATION_TOKEN,
    name_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


CLIENT_ID = "shmbroker-cli"
ANSWER_S = 10.0

_BROKER = 4
_BROKER_LOGGER = 8
"""Resource types."""
_GROUP = 0
"""Key type of FindCoordinator."""
_BROKERS = 1
"""Endpoint type of DescribeCluster."""
_EXACT = 0
_DEFAULT = 1
"""How a filter of quotas matches a name."""
_TOKEN_NEEDS = {
    error_codes.DELEGATION_TOKEN_AUTH_DISABLED: (
        ": the brokers need the setting delegation.token.secret.key"
    ),
    error_codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        ": they are for clients that have shown who they are, by SASL or a certificate, and not by"
        " a token: use a listener with SASL (sasl.enabled.mechanisms) or TLS (ssl.client.auth), by"
        " -X or a --profile; and the brokers need the setting delegation.token.secret.key"
    ),
}
"""What is lacking where a cluster answers so about delegation tokens."""
_SET = 0
_DELETE = 1


def ask(
    addresses: Sequence[Address], api_key: int, body: Message, version: int | None = None
) -> Message:
    """The answer of the first of these that can be reached; ClusterFault if there is none."""
    try:
        with Cluster(addresses, CLIENT_ID, ANSWER_S) as cluster:
            return cluster.ask_any(api_key, body, version)
    except NoBrokerFault as fault:
        about = f"{addresses_text(addresses[:1])} gives no answer to {name_of(api_key)}"
        raise ClusterFault(f"{about}: {fault.reason}") from fault


def delete_offsets(
    addresses: Sequence[Address], group: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Forget committed offsets: {(topic, partition): error}; ClusterFault if all is refused."""
    topics: dict[str, list[dict[str, int]]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append({"partition_index": partition})
    body = {
        "group_id": group,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }

    def once() -> Message:
        found = ask(addresses, FIND_COORDINATOR, {"key": group, "key_type": _GROUP})
        refuse(found["error_code"], f"coordinator of group {group}")
        coordinator = entered(addresses).others([(found["host"], found["port"])])
        answer = ask(coordinator, OFFSET_DELETE, body)
        refuse(answer["error_code"], f"group {group}")
        return answer

    return {
        (topic["name"], row["partition_index"]): row["error_code"]
        for topic in patiently(once, ANSWER_S, f"the offsets of group {group} are kept")["topics"]
        for row in topic["partitions"]
    }


def default_broker_configs(addresses: Sequence[Address]) -> dict[str, str | None]:
    """The dynamic settings of all brokers together: {name: text, None where it is secret}."""
    return _configs(addresses, _BROKER, "", "settings of all brokers")


def logger_levels(address: Sequence[Address], broker: str) -> dict[str, str | None]:
    """The levels of a broker's loggers, as it tells them itself at its address."""
    return _configs(address, _BROKER_LOGGER, broker, f"loggers of broker {broker}")


def _configs(
    addresses: Sequence[Address], kind: int, name: str, about: str
) -> dict[str, str | None]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = ask(addresses, DESCRIBE_CONFIGS, {"resources": [resource]})["results"]
    refuse(result["error_code"], about, result["error_message"])
    return {row["name"]: row["value"] for row in result["configs"]}


def alter_default_broker_configs(
    addresses: Sequence[Address], values: Mapping[str, str], deleted: Iterable[str]
) -> None:
    """Change them; ClusterFault, in the cluster's words, if it refuses."""
    _alter_configs(addresses, _BROKER, "", values, deleted, "settings of all brokers")


def alter_logger_levels(
    address: Sequence[Address], broker: str, values: Mapping[str, str], deleted: Iterable[str]
) -> None:
    """Change levels of a broker's loggers, or give some back theirs; ClusterFault likewise."""
    about = f"loggers of broker {broker}"
    _alter_configs(address, _BROKER_LOGGER, broker, values, deleted, about)


def _alter_configs(
    addresses: Sequence[Address],
    kind: int,
    resource_name: str,
    values: Mapping[str, str],
    deleted: Iterable[str],
    about: str,
) -> None:
    configs: list[Message] = [
        {"name": name, "config_operation": _SET, "value": value} for name, value in values.items()
    ]
    configs += [{"name": name, "config_operation": _DELETE, "value": None} for name in deleted]
    resource = {"resource_type": kind, "resource_name": resource_name, "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    (result,) = ask(addresses, INCREMENTAL_ALTER_CONFIGS, body)["responses"]
    refuse(result["error_code"], about, result["error_message"])


def describe_quorum(addresses: Sequence[Address]) -> tuple[str, Message]:
    """Cluster id, and the metadata log's partition of a DescribeQuorum answer.

    Where the active controller changes just now, it is asked for again for some seconds.
    """
    cluster = ask(addresses, DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})
    refuse(cluster["error_code"], "the cluster", cluster["error_message"])
    partition = {"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}

    def once() -> Message:
        answer = ask(addresses, DESCRIBE_QUORUM, {"topics": [partition]})
        refuse(answer["error_code"], "the controllers", right="describe")
        row: Message = answer["topics"][0]["partitions"][0]
        refuse(row["error_code"], "the controllers")
        return row

    return cluster["cluster_id"], patiently(once, ANSWER_S, "the quorum is not told")


def acls(addresses: Sequence[Address], filters: Iterable[Message]) -> list[Message]:
    """ACLs that any of these filters of DescribeAcls matches, each as a row with its resource."""
    found: list[Message] = []
    for wanted in filters:
        answer = ask(addresses, DESCRIBE_ACLS, wanted)
        _refuse_acls(answer, "describe")
        for resource in answer["resources"]:
            place = {name: value for name, value in resource.items() if name != "acls"}
            found += (row for acl in resource["acls"] if (row := place | acl) not in found)
    return found


def create_acls(addresses: Sequence[Address], creations: Sequence[Message]) -> None:
    """Add ACLs, rows of CreateAcls; ClusterFault, in the cluster's words, for the first that is
    refused."""
    for row in ask(addresses, CREATE_ACLS, {"creations": creations})["results"]:
        _refuse_acls(row)


def delete_acls(addresses: Sequence[Address], filters: Sequence[Message]) -> int:
    """Remove the ACLs that any of these filters matches; how many were there."""
    results = ask(addresses, DELETE_ACLS, {"filters": filters})["filter_results"]
    for row in results:
        _refuse_acls(row)
    return sum(len(row["matching_acls"]) for row in results)


def _refuse_acls(answer: Message, right: str = "alter") -> None:
    if answer["error_code"] == error_codes.SECURITY_DISABLED:
        raise RefusedFault(
            "the cluster has no ACLs, as it has no authorizer: start it with --set "
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer and say "
            "with --set super.users= who may add the first"
        )
    refuse(answer["error_code"], "ACLs", right=right)


def client_quotas(
    addresses: Sequence[Address], entity: Iterable[tuple[str, str | None]]
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """(entity, values) of all that has these names by type; a name of None: the default."""
    components = [
        {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
        for kind, name in entity
    ]
    answer = ask(addresses, DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": False})
    refuse(answer["error_code"], "quotas", answer["error_message"], "describe-configs")
    return [
        (
            {row["entity_type"]: row["entity_name"] for row in entry["entity"]},
            {row["key"]: row["value"] for row in entry["values"]},
        )
        for entry in answer["entries"] or ()
    ]


def alter_client_quotas(
    addresses: Sequence[Address],
    entity: Iterable[tuple[str, str | None]],
    values: Mapping[str, float | None],
) -> None:
    """Set quotas of an entity; None takes one away. ClusterFault, in the cluster's words, if it
    refuses."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in values.items()
        ],
    }

    def once() -> None:
        body = {"entries": [entry], "validate_only": False}
        (result,) = ask(addresses, ALTER_CLIENT_QUOTAS, body)["entries"]
        refuse(result["error_code"], "quotas", result["error_message"], "alter-configs")

    patiently(once, ANSWER_S, "the quotas are not changed")


def create_token(
    addresses: Sequence[Address],
    owner: tuple[str, str] | None,
    renewers: Iterable[tuple[str, str]],
    lifetime_ms: int,
) -> Message:
    """Make a delegation token; what `tokens` tells of it. Principals are (type, name); without an
    owner it is who asks. lifetime_ms: how long it may be renewed; negative: as long as allowed."""
    type_, name = owner or (None, None)
    renewing = [_principal(renewer) for renewer in renewers]
    body = {
        "owner_principal_type": type_,
        "owner_principal_name": name,
        "renewers": renewing,
        "max_lifetime_ms": lifetime_ms,
    }
    made = ask(addresses, CREATE_DELEGATION_TOKEN, body)
    _refuse_token(made["error_code"], "the token is not made")
    for time in ("issue", "expiry", "max"):
        made[f"{time}_timestamp"] = made.pop(f"{time}_timestamp_ms")
    return made | {"renewers": renewing}


def tokens(
    addresses: Sequence[Address], owners: Iterable[tuple[str, str]] | None = None
) -> list[Message]:
    """The delegation tokens that may be seen, as DescribeDelegationToken has them; of these
    principals, if any are given."""
    wanted = None if owners is None else [_principal(owner) for owner in owners]
    answer = ask(addresses, DESCRIBE_DELEGATION_TOKEN, {"owners": wanted})
    _refuse_token(answer["error_code"], "tokens are not told")
    return list(answer["tokens"])


def renew_token(addresses: Sequence[Address], hmac: bytes, period_ms: int) -> int:
    """Let a token hold for so long from now, or negative: as long as allowed; until when it does,
    in milliseconds since 1970."""
    body = {"hmac": hmac, "renew_period_ms": period_ms}
    answer = ask(addresses, RENEW_DELEGATION_TOKEN, body)
    _refuse_token(answer["error_code"], "the token is not renewed")
    return int(answer["expiry_timestamp_ms"])


def expire_token(addresses: Sequence[Address], hmac: bytes, period_ms: int) -> int:
    """Let a token end in so long from now, or negative: remove it; until when it holds."""
    body = {"hmac": hmac, "expiry_time_period_ms": period_ms}
    answer = ask(addresses, EXPIRE_DELEGATION_TOKEN, body)
    _refuse_token(answer["error_code"], "the token is not ended")
    return int(answer["expiry_timestamp_ms"])


def _refuse_token(error: int, about: str) -> None:
    """ClusterFault, with what a token needs where that is lacking."""
    message = error_codes.message_of(error)
    refuse(error, about, f"{message}{_TOKEN_NEEDS.get(error, '')}")


def _principal(parts: tuple[str, str]) -> Message:
    return {"principal_type": parts[0], "principal_name": parts[1]}


def has_topic(addresses: Sequence[Address], name: str) -> bool:
    """Whether there is such a topic; the question does not create it."""
    body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    (topic,) = ask(addresses, METADATA, body)["topics"]
    if topic["error_code"] == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        return False
    refuse(topic["error_code"], f"topic {name}")
    return True


def log_dirs(
    address: Sequence[Address], topics: Mapping[str, Iterable[int]] | None
) -> list[Message]:
    """What a broker's log directories hold, as DescribeLogDirs has it; None: of all topics."""
    wanted = None
    if topics is not None:
        wanted = [{"topic": name, "partitions": list(rows)} for name, rows in topics.items()]
    answer = ask(address, DESCRIBE_LOG_DIRS, {"topics": wanted})
    refuse(answer["error_code"], "log directories")
    return list(answer["results"])


def fenced_brokers(addresses: Sequence[Address]) -> list[int]:
    """Ids of brokers that are registered but fenced: not in touch with the controller."""
    body = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": _BROKERS,
        "include_fenced_brokers": True,
    }
    answer = ask(addresses, DESCRIBE_CLUSTER, body, version=2)
    refuse(answer["error_code"], "the cluster", answer["error_message"])
    return [row["broker_id"] for row in answer["brokers"] if row["is_fenced"]]


def refuse(error: int, about: str, message: str | None = None, right: str = "") -> None:
    """Raise what the cluster says, without the error's name: it is for people. right: the operation
    on the cluster that it takes, where the cluster says no more than that it is lacking."""
    if error == error_codes.CLUSTER_AUTHORIZATION_FAILED and right:
        cure = f"`shmbroker acl add --allow PRINCIPAL --operation {right} --cluster`"
        message = f"{error_codes.message_of(error)}; {cure} by a super user gives the right"
    faults.refuse(error, about, message or error_codes.message_of(error))
