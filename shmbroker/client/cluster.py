"""The brokers of a cluster: who they are, who leads what, and a question to one of them.

    ask_any      any broker answers: one connection to the first that can be reached, of those that
                 were given and, later, of those that the cluster named; what fails is tried with
                 the next one
    ask_broker   one broker of choice, over a connection of its own
    connect      a connection to a broker that is the caller's

An answer is waited for at most `answer_s`. Nothing is tried again here (`retries`), and no other
broker is asked after one that does not believe who we are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shmbroker import __version__, clock
from shmbroker.client.addresses import Address, addresses_text, entered
from shmbroker.client.connection import Connection, connect
from shmbroker.client.faults import ClusterFault, NoBrokerFault, refuse
from shmbroker.client.security import Security
from shmbroker.client.versions import PLAIN, lacking
from shmbroker.errors import ProtocolFault
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import API_VERSIONS, METADATA, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message


SOFTWARE_NAME = "shmbroker"
NO_ID = bytes(16)
READ = 1 << 3
"""The bit of Kafka's AclOperation.READ."""
NOT_SAID = -(1 << 31)
"""Operations that were not asked for, or of a broker that doesn't tell them."""


class Topic(NamedTuple):
    """A topic that exists; `leaders[i]` is the broker id that leads partition i, -1: none now."""

    name: str
    topic_id: bytes
    leaders: list[int]
    operations: int = NOT_SAID
    """What who asked may do with it, a bit for each operation of ACLs (KIP-430)."""

    @property
    def may_be_read(self) -> bool:
        """Whether who asked may read it, as far as that was said."""
        return self.operations == NOT_SAID or bool(self.operations & READ)

    @property
    def partitions(self) -> range:
        """The numbers of the topic's partitions."""
        return range(len(self.leaders))

    def leader_of(self, partition: int) -> int:
        """The broker that leads a partition; -1: none now, or there is no such partition."""
        return self.leaders[partition] if partition in self.partitions else -1


class Cluster:
    """The brokers behind these addresses; for any thread.

    With ApiVersions among `versions`, the first broker that is asked says whether it serves them.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        client_id: str,
        answer_s: float,
        versions: Mapping[int, int] = PLAIN,
    ) -> None:
        self.bootstrap = entered(bootstrap)
        self.client_id = client_id
        self.answer_s = answer_s
        self.brokers: dict[int, Address] = {}
        self.topics: dict[str, Topic] = {}
        """The topics that `refresh` has found."""
        self._versions = versions
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._to_brokers: dict[int, Connection] = {}

    @property
    def security(self) -> Security:
        """How its brokers are entered."""
        return self.bootstrap.security

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the next question opens them again."""
        with self._lock:
            for connection in self._open():
                connection.close()
            self._connection = None
            self._to_brokers.clear()

    def wait_at_most(self, answer_s: float) -> None:
        """Wait for an answer so long from now on."""
        with self._lock:
            self.answer_s = answer_s
            for connection in self._open():
                connection.socket.settimeout(answer_s)

    def _open(self) -> list[Connection]:
        first = [] if self._connection is None else [self._connection]
        return [*first, *self._to_brokers.values()]

    # --- who leads what --------------------------------------------------------------------------

    def describe(
        self,
        names: Iterable[str] | None,
        creates: bool,
        until_s: float | None = None,
        tells_operations: bool = False,
    ) -> list[tuple[Topic, int, bool]]:
        """What any broker says of these topics (None: of all): a (topic, error, whether it is
        internal) for each; with an error there may be no partitions.

        creates: the question may make a topic, if brokers do that. tells_operations: they say what
        we may do with each.
        """
        wanted = None if names is None else [{"name": name} for name in names]
        body = {
            "topics": wanted,
            "allow_auto_topic_creation": creates,
            "include_topic_authorized_operations": tells_operations,
        }
        answer = self.ask_any(METADATA, body, until_s=until_s)
        self.brokers = {b["node_id"]: (b["host"], b["port"]) for b in answer["brokers"]}
        return [
            (
                Topic(
                    topic["name"],
                    topic.get("topic_id", NO_ID),
                    _leaders(topic),
                    topic["topic_authorized_operations"],
                ),
                topic["error_code"],
                topic["is_internal"],
            )
            for topic in answer["topics"]
        ]

    def refresh(self, names: Iterable[str]) -> dict[str, int]:
        """Look these topics up; the error of each. Topics with one stay as they were."""
        names = sorted(names)
        errors = dict.fromkeys(names, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        with self._lock:
            for topic, error, _ in self.describe(names, creates=True):
                errors[topic.name] = error
                if not error and topic.leaders:
                    self.topics[topic.name] = topic
        return errors

    # --- questions -------------------------------------------------------------------------------

    def ask_any(
        self,
        api_key: int,
        body: Message,
        version: int | None = None,
        until_s: float | None = None,
    ) -> Message:
        """The answer of the first broker that gives one; NoBrokerFault if none does. After
        `until_s`, by the monotonic clock, no other one is tried."""
        with self._lock:
            reason: Exception | None = None
            if self._connection is not None:
                try:
                    return self._connection.ask(api_key, body, version)
                except (OSError, ProtocolFault) as error:
                    reason = error
                    self._connection.close()
                    self._connection = None
            for address in dict.fromkeys([*self.bootstrap, *self.brokers.values()]):
                if reason is not None and until_s is not None and clock.monotonic() > until_s:
                    break
                try:
                    connection = self.connect(address)
                    try:
                        self._greet(connection)
                        answer = connection.ask(api_key, body, version)
                    except BaseException:
                        connection.close()
                        raise
                except (OSError, ProtocolFault) as error:
                    reason = error
                    continue
                self._connection = connection
                return answer
        raise NoBrokerFault(addresses_text(self.bootstrap), reason)

    def ask_broker(
        self, broker_id: int, api_key: int, body: Message, version: int | None = None
    ) -> Message:
        """One broker's answer; OSError or ProtocolFault if it gives none."""
        with self._lock:
            connection = self._to_brokers.get(broker_id)
            if connection is None:
                if broker_id not in self.brokers:
                    raise ConnectionError(f"broker {broker_id} is not in the cluster")
                connection = self.connect(self.brokers[broker_id])
                self._to_brokers[broker_id] = connection
            try:
                return connection.ask(api_key, body, version)
            except (OSError, ProtocolFault):
                connection.close()
                del self._to_brokers[broker_id]
                raise

    def connect(self, address: Address) -> Connection:
        """A new connection; OSError if nobody is there."""
        return connect(address, self.answer_s, self.client_id, self._versions, self.security)

    def _greet(self, connection: Connection) -> None:
        if API_VERSIONS not in self._versions:
            return
        myself = {"client_software_name": SOFTWARE_NAME, "client_software_version": __version__}
        answer = connection.ask(API_VERSIONS, myself)
        refuse(answer["error_code"], "ApiVersions")
        api_key = lacking(self._versions, answer["api_keys"])
        if api_key is not None:
            version = self._versions[api_key]
            raise ClusterFault(f"{connection.name} lacks {name_of(api_key)} v{version}")


def _leaders(topic: Message) -> list[int]:
    leaders = [-1] * len(topic["partitions"])
    for partition in topic["partitions"]:
        index = partition["partition_index"]
        if not 0 <= index < len(leaders):
            raise ProtocolFault(f"{topic['name']} has no partition {index} in Metadata")
        leaders[index] = partition["leader_id"]
    return leaders
