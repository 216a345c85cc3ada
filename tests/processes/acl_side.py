"""A broker with an authorizer, ours or Apache Kafka: who is known there, what each may do, what
there is to be asked for, and how a principal's answers are made comparable.

    admin     a super user: sets all up, and shows what is answered to who may do everything
    dave      one right on each thing: topic t-read may be read, group g-read be read, …
    bob       prefixes that overlap, hosts that are his and hosts that are not
    carol     may do everything, but for what is denied: t-read may not be read, …
    nobody    has shown who he is, and has no right but everybody's
    anonymous User:ANONYMOUS, by a listener that asks for no name
    k-…       one right on the cluster each

Names begin with what they are: t- topics, m- topics that are not there, g- groups, x-
transactional ids; what follows is the right that dave has on it.
"""

from typing import Any

from shmbroker.security.acls import (
    ALL,
    ALLOW,
    ALTER,
    ALTER_CONFIGS,
    ANONYMOUS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    CREATE_TOKENS,
    DELETE,
    DENY,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOKENS,
    EVERYBODY,
    GROUP,
    IDEMPOTENT_WRITE,
    LITERAL,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    USER,
    WRITE,
)
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.wire import schema
from tests.processes.wire_side import ANSWER_S, CLOSED, Side
from tests.support.raw_client import RawClient, batch_of, key_of, produce_body
from tests.support.scram_client import ScramClient
from tests.support.waiting import wait_until

Acl = tuple[str, int, str, int, int, int, str]
"""Principal, resource type, name, pattern, operation, permission, host."""

RIGHTS = {
    "read": READ,
    "write": WRITE,
    "create": CREATE,
    "delete": DELETE,
    "alter": ALTER,
    "describe": DESCRIBE,
    "dconf": DESCRIBE_CONFIGS,
    "aconf": ALTER_CONFIGS,
    "all": ALL,
}
CLUSTER_RIGHTS = {
    "k-create": CREATE,
    "k-alter": ALTER,
    "k-describe": DESCRIBE,
    "k-action": CLUSTER_ACTION,
    "k-dconf": DESCRIBE_CONFIGS,
    "k-aconf": ALTER_CONFIGS,
    "k-idem": IDEMPOTENT_WRITE,
}

TOPICS = ["t-none", *(f"t-{right}" for right in RIGHTS), "public"]
UNKNOWN = ["m-none", "m-describe", "m-create"]
NAMED = [*TOPICS, *UNKNOWN]
GROUPS = [f"g-{right}" for right in ("none", "read", "delete", "describe", "dconf", "aconf", "all")]
GROUPS_848 = {"c-seen": "t-describe", "c-hidden": "t-none", "c-read": "t-read"}
"""Groups of the consumer protocol, and what their only member reads."""
IDS = [f"x-{right}" for right in ("none", "write", "describe", "all")]
DELETED = ["d-none", "d-delete", "d-describe", "d-all"]

ADMIN, ANYBODY = "admin", "anonymous"
PEOPLE = (ADMIN, "dave", "bob", "carol", "nobody", ANYBODY)
EVERY_KIND = (*PEOPLE, *CLUSTER_RIGHTS)
USERS = tuple(who for who in EVERY_KIND if who != ANYBODY)

HERE, ELSEWHERE = "127.0.0.1", "10.9.8.7"

SUBJECT_KINDS = {"t": TOPIC, "m": TOPIC, "d": TOPIC, "g": GROUP, "x": TRANSACTIONAL_ID}


def password_of(user: str) -> str:
    """What a user says to be let in."""
    return f"{user}-secret"


def acls() -> list[Acl]:
    """All that are set."""
    found: list[Acl] = []

    def add(
        who: str,
        kind: int,
        name: str,
        operation: int,
        pattern: int = LITERAL,
        permission: int = ALLOW,
        host: str = "*",
    ) -> None:
        found.append((who, kind, name, pattern, operation, permission, host))

    dave, bob, carol = "User:dave", "User:bob", "User:carol"
    for name in (*NAMED, *DELETED, *GROUPS, *IDS):
        letter, _, right = name.partition("-")
        if right in RIGHTS:
            add(dave, SUBJECT_KINDS[letter], name, RIGHTS[right])
            add(carol, SUBJECT_KINDS[letter], name, RIGHTS[right], permission=DENY)
    for name, rights in (
        ("n-seen", (DESCRIBE,)),
        ("n-create", (CREATE,)),
        ("n-create-seen", (CREATE, DESCRIBE_CONFIGS)),
    ):
        for right in rights:
            add(dave, TOPIC, name, right)
    add(dave, GROUP, "c-", DESCRIBE, PREFIXED)
    for kind in (TOPIC, GROUP, TRANSACTIONAL_ID):
        add(carol, kind, "*", ALL)
    add(carol, CLUSTER, CLUSTER_NAME, ALL)
    add(carol, CLUSTER, CLUSTER_NAME, IDEMPOTENT_WRITE, permission=DENY)
    add(carol, CLUSTER, CLUSTER_NAME, ALTER, permission=DENY)
    # Prefixes that overlap: all topics of t- may be read, not those of t-d, and t-dconf all the
    # same may not, as denying beats allowing however long the name is.
    add(bob, TOPIC, "t-", READ, PREFIXED)
    add(bob, TOPIC, "t-d", READ, PREFIXED, DENY)
    add(bob, TOPIC, "t-dconf", READ)
    add(bob, TOPIC, "t-delete", DESCRIBE)
    add(bob, TOPIC, "t-write", WRITE, host=HERE)
    add(bob, TOPIC, "t-read", WRITE, host=ELSEWHERE)
    add(bob, TOPIC, "t-all", WRITE)
    add(bob, TOPIC, "t-all", WRITE, permission=DENY, host=ELSEWHERE)
    add(bob, GROUP, "g-", READ, PREFIXED)
    add(bob, GROUP, "g-describe", DESCRIBE, permission=DENY)
    add(bob, GROUP, "c-", READ, PREFIXED)
    add(bob, TRANSACTIONAL_ID, "x-", WRITE, PREFIXED)
    add(bob, TRANSACTIONAL_ID, "x-describe", WRITE, permission=DENY)
    add(bob, USER, "User:dave", CREATE_TOKENS)
    add(bob, USER, "User:carol", DESCRIBE_TOKENS)
    add(EVERYBODY, TOPIC, "public", READ)
    add(ANONYMOUS, TOPIC, "t-none", DESCRIBE, host=HERE)
    add(ANONYMOUS, GROUP, "g-none", READ, host=ELSEWHERE)
    for who, right in CLUSTER_RIGHTS.items():
        add(f"User:{who}", CLUSTER, CLUSTER_NAME, right)
    return found


def settings(port: int, sasl_port: int) -> dict[str, str]:
    """Of the broker: a port for who says no name and one for users of PLAIN, and the authorizer."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    known = " ".join(f'user_{user}="{password_of(user)}"' for user in USERS)
    listeners = f"PLAINTEXT://{HERE}:{port},SASL_PLAINTEXT://{HERE}:{sasl_port}"
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module} required username="{ADMIN}" password="{password_of(ADMIN)}" {known};'
        ),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN}",
    }


def settings_of_kafka(port: int, sasl_port: int, controller_port: int) -> dict[str, str]:
    """Those of one Kafka node, broker and controller: it talks to itself as the super user."""
    ours = settings(port, sasl_port)
    jaas = ours["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    return ours | {
        "listeners": f"{ours['listeners']},CONTROLLER://{HERE}:{controller_port}",
        "listener.security.protocol.map": (
            f"{ours['listener.security.protocol.map']},CONTROLLER:SASL_PLAINTEXT"
        ),
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "group.initial.rebalance.delay.ms": "0",
    }


class AclSide(Side):
    """One broker, asked by several principals. Nothing may be on it before."""

    def __init__(self, address: str, sasl_address: str) -> None:
        super().__init__(address, keeps_texts=True)
        self.sasl_address = sasl_address
        self.prefix = ""
        self._clients: dict[str, RawClient] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def client(self, who: str) -> RawClient:
        """The connection of a principal."""
        found = self._clients.get(who)
        if found is None:
            found = self._clients[who] = self.connect(who)
        return found

    def connect(self, who: str) -> RawClient:
        """One more connection of a principal."""
        if who == ANYBODY:
            return RawClient(self.address, ANSWER_S)
        return ScramClient(self.sasl_address, ANSWER_S).plain(who, password_of(who))

    def asked_by(self, who: str, api: str, version: int, body: dict[str, Any]) -> Any:
        """The comparable answer to one request of a principal."""
        body = fitted(schema.message(api + "Request").fields, version, body)
        try:
            answer = self.client(who).ask(api, version, body)
        except ConnectionError:
            self._clients.pop(who).close()
            return CLOSED
        return self.comparable(api, version, answer)

    def admin(self, api: str, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request of the super user, as it is."""
        return self.client(ADMIN).ask(api, version, body)

    # ── what there is ───────────────────────────────────────────────────────────────────────────

    def set_up(self) -> None:
        """Topics with a record, groups with offsets, transactional ids, ACLs."""
        self.make_topics(*TOPICS)
        for topic in TOPICS:
            self.until(lambda topic=topic: self._has_a_record(topic), f"{topic} has a record")
        for kind, key in ((0, GROUPS[0]), (1, IDS[0])):  # the topic of the coordinators is made so
            self.admin("FindCoordinator", 4, {"key_type": kind, "coordinator_keys": [key]})
        for group in GROUPS:
            self.until(lambda group=group: self._has_committed(group), f"{group} has offsets")
        self.join_groups()
        for name in IDS:
            self.until(lambda name=name: self._has_begun(name), f"{name} has a transaction")
        rows = [
            {
                "principal": who,
                "resource_type": kind,
                "resource_name": name,
                "resource_pattern_type": pattern,
                "operation": operation,
                "permission_type": permission,
                "host": host,
            }
            for who, kind, name, pattern, operation, permission, host in acls()
        ]
        answer = self.admin("CreateAcls", 3, {"creations": rows})
        assert not any(row["error_code"] for row in answer["results"]), answer
        last = "k-idem"  # Kafka's broker learns of them a moment later
        body = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1}
        self.until(
            lambda: self.client(last).ask("InitProducerId", 4, body)["error_code"] == 0, "ACLs hold"
        )

    def make_topics(self, *names: str) -> None:
        """Those of them that are not there."""
        kept = [{"name": "retention.ms", "value": "-1"}]  # of records of another year
        rows = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": kept}
            for name in names
        ]
        made = self.admin("CreateTopics", 7, {"topics": rows, "timeout_ms": 10_000})["topics"]
        new = {row["topic_id"] for row in made if not row["error_code"]}
        asked = {
            "topics": [{"name": name} for name in names],
            "allow_auto_topic_creation": False,
        }

        def are_there() -> bool:
            found = self.admin("Metadata", 12, asked)["topics"]
            self.topics |= {row["name"]: row["topic_id"] for row in found}
            return new <= set(self.topics.values()) and not any(
                row["error_code"] or any(one["error_code"] for one in row["partitions"])
                for row in found
            )

        self.until(are_there, f"topics {names}")

    def _has_a_record(self, topic: str) -> bool:
        answer = self.admin("Produce", 9, produce_body(topic, batch_of(b"first")))
        return not answer["responses"][0]["partition_responses"][0]["error_code"]

    def _has_committed(self, group: str) -> bool:
        partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
        body = {
            "group_id": group,
            "topics": [{"name": name, "partitions": partitions} for name in TOPICS],
        }
        answer = self.admin("OffsetCommit", 8, body)
        return not any(row["partitions"][0]["error_code"] for row in answer["topics"])

    def join_groups(self) -> None:
        """The members of GROUPS_848 are there, if they were away."""
        for group, topic in GROUPS_848.items():
            self.until(
                lambda group=group, topic=topic: self._has_joined(group, topic), f"{group} is there"
            )

    def _has_joined(self, group: str, topic: str) -> bool:
        body = {
            "group_id": group,
            "member_id": "a-member-of-admin",
            "member_epoch": 0,
            "rebalance_timeout_ms": 300_000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        }
        answer = self.admin("ConsumerGroupHeartbeat", 1, body)
        assignment = answer["assignment"]
        return assignment is not None and bool(assignment["topic_partitions"])

    def _has_begun(self, name: str) -> bool:
        body = {
            "transactional_id": name,
            "transaction_timeout_ms": 600_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self.admin("InitProducerId", 4, body)
        if answer["error_code"]:
            return False
        body = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": answer["producer_id"],
            "v3_and_below_producer_epoch": answer["producer_epoch"],
            "v3_and_below_topics": [
                {"name": topic, "partitions": [0]} for topic in ("t-none", "t-describe")
            ],
        }
        added = self.admin("AddPartitionsToTxn", 3, body)["results_by_topic_v3_and_below"]
        return not any(row["results_by_partition"][0]["partition_error_code"] for row in added)

    @staticmethod
    def until(is_so: Any, what: str) -> None:
        """Ask again and again."""
        wait_until(is_so, what, ANSWER_S)

    # ── comparable answers ──────────────────────────────────────────────────────────────────────

    def comparable(self, api: str, version: int, answer: dict[str, Any]) -> Any:
        """As in Side; and without what an API says of other things than rights, in one order."""
        return _ordered(super().comparable(api, version, answer), LEFT_OUT.get(key_of(api), ()))

    def _word(self, name: str, value: Any) -> Any:
        if name in _COUNTED:
            return "some" if value else "none"
        if name in _PLACES and value >= 0:
            return "some"
        if name == "client_host":
            return "host"
        if isinstance(value, str) and value.startswith(_REQUEST_IN_JAVA):
            return "Cluster authorization failed."
        return super()._word(name, value)


_COUNTED = ("configs", "brokers", "log_dirs", "protocol_data", "hmac")
_REQUEST_IN_JAVA = "Request Request("
"""So begins what Kafka's controller says of a request without the right: all of a Java object."""
_PLACES = (
    "base_offset", "high_watermark", "last_stable_offset", "end_offset", "offset", "low_watermark",
    "log_start_offset", "producer_epoch", "transaction_start_time_ms", "leader_epoch",
    "current_leader_epoch", "epoch", "group_epoch", "assignment_epoch", "member_epoch",
    "partition_error_offset", "finalized_features_epoch",
)  # fmt: skip
"""Numbers that tell of what was done before; whether there is one counts."""

LEFT_OUT: dict[int, tuple[str, ...]] = {
    key_of("ApiVersions"): ("api_keys", "supported_features", "finalized_features"),
    key_of("Metadata"): ("partitions",),
    key_of("DescribeTopicPartitions"): ("partitions",),
    key_of("DescribeQuorum"): ("topics", "nodes"),
    key_of("DescribeProducers"): ("active_producers",),
    key_of("DescribeLogDirs"): ("partitions",),
    key_of("ListConfigResources"): ("config_resources",),
    key_of("DescribeClientQuotas"): ("entries",),
}
"""Fields that other tests compare."""


def _ordered(tree: Any, left_out: tuple[str, ...]) -> Any:
    """Kafka answers rows in the order of hash maps."""
    if isinstance(tree, dict):
        return {key: _ordered(tree[key], left_out) for key in sorted(tree) if key not in left_out}
    if isinstance(tree, list):
        return sorted((_ordered(one, left_out) for one in tree), key=repr)
    return tree


def fitted(fields: list[schema.Field], version: int, body: dict[str, Any]) -> dict[str, Any]:
    """A request without the fields that its version lacks."""
    found = {}
    for field in fields:
        if field.name in body and schema.is_within(version, field.versions):
            value = body[field.name]
            if field.type == "{}" and value is not None:
                if field.is_array:
                    value = [fitted(field.fields, version, row) for row in value]
                else:
                    value = fitted(field.fields, version, value)
            found[field.name] = value
    return found
