"""The client's core: answers matched to requests, brokers tried in turn, retries, faults' words."""

import pickle
import socket
from collections.abc import Iterator

import pytest

from shmbroker.client import cluster as cluster_module
from shmbroker.client import faults, retries
from shmbroker.client.addresses import parse_addresses
from shmbroker.client.admin import ask
from shmbroker.client.cluster import NOT_SAID, Cluster, Topic
from shmbroker.client.connection import Connection, Exchange, connect
from shmbroker.client.faults import (
    ClusterFault,
    DataLossFault,
    LaterFault,
    NoBrokerFault,
    RefusedFault,
    refuse,
)
from shmbroker.client.producer import questions
from shmbroker.client.versions import PLAIN, READING, lacking
from shmbroker.errors import ConfigFault, Fault, ProtocolFault
from shmbroker.wire import codec, error_codes, frame
from shmbroker.wire.api_keys import FETCH, LIST_SEGMENTS, METADATA, PRODUCE

METADATA_BODY = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
ADDRESSES = [("a", 1), ("b", 2)]


def answer_of(correlation_id: int, **fields: object) -> bytes:
    """The frame of a Metadata answer."""
    body = {"brokers": [], "topics": [], "cluster_id": "c", "controller_id": 1} | fields
    encoded = codec.encode("MetadataResponse", PLAIN[METADATA], body)
    return frame.response_frame(METADATA, PLAIN[METADATA], correlation_id, encoded)


# --- a connection --------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.settimeout(10)
        yield Connection(ours, "h:1", "me"), theirs


def test_answers_come_in_the_order_of_the_requests(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    connection.send(METADATA, METADATA_BODY)
    connection.send(METADATA, METADATA_BODY)
    broker.sendall(answer_of(1, cluster_id="one") + answer_of(2, cluster_id="two"))
    assert connection.receive()["cluster_id"] == "one"
    assert connection.is_waiting
    assert connection.receive()["cluster_id"] == "two"
    assert not connection.is_waiting


def test_a_request_says_who_asks_and_in_which_version(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, broker = pair
    connection.send(METADATA, METADATA_BODY)
    connection.send(METADATA, METADATA_BODY, version=12)
    for number, version in ((1, PLAIN[METADATA]), (2, 12)):
        size = frame.frame_size(broker.recv(4, socket.MSG_WAITALL), 0, 1000)
        content = broker.recv(size, socket.MSG_WAITALL)
        head = frame.parse_request_header(content, 0, size)
        assert head[:4] == (METADATA, version, number, b"me")


@pytest.mark.parametrize("numbers", [(2,), (1, 1)], ids=["of another request", "twice"])
def test_an_answer_to_something_else_is_a_fault(
    pair: tuple[Connection, socket.socket], numbers: tuple[int, ...]
) -> None:
    connection, broker = pair
    connection.send(METADATA, METADATA_BODY)
    for number in numbers:
        broker.sendall(answer_of(number))
    with pytest.raises(ProtocolFault, match="h:1 answers"):
        for _ in numbers:
            connection.receive()


def test_a_connection_that_ends_is_told(pair: tuple[Connection, socket.socket]) -> None:
    connection, broker = pair
    connection.send(METADATA, METADATA_BODY)
    broker.sendall(answer_of(1)[:9])
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match="h:1 closed the connection"):
        connection.receive()


def test_what_is_not_answered_is_not_waited_for() -> None:
    exchange = Exchange("h:1", "me")
    assert exchange.next_id(PRODUCE, 9, is_answered=False) == 1
    assert exchange.next_id(PRODUCE, 9) == 2
    assert [number for number, _, _ in exchange.waiting] == [2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:1", [("h", 1)]),
        (" h:1 , i:65535,", [("h", 1), ("i", 65535)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_addresses(text: str, found: list[tuple[str, int]]) -> None:
    assert list(parse_addresses(text)) == found


@pytest.mark.parametrize("text", ["", ",", "h", "h:", ":1", "h:x", "h:65536", "h:²", b"h:1", 1])
def test_what_is_no_address_names_the_setting(text: str) -> None:
    with pytest.raises(ConfigFault, match="kafka servers"):
        parse_addresses(text, "kafka servers")


def test_what_can_not_be_a_name_is_a_broker_that_is_not_there() -> None:
    with pytest.raises(ConnectionError, match=r"a\.\.b can't be the name of a host"):
        connect(("a..b", 1), 1.0, "me")


# --- versions ------------------------------------------------------------------------------------


def test_a_version_that_is_not_served_is_named() -> None:
    rows = {
        key: {"api_key": key, "min_version": 0, "max_version": version}
        for key, version in READING.items()
        if key != LIST_SEGMENTS  # no broker lists it
    }
    assert lacking(READING, rows.values()) is None
    rows[FETCH]["max_version"] -= 1
    assert lacking(READING, rows.values()) == FETCH
    rows[FETCH] |= {"min_version": 14, "max_version": 17}
    assert lacking(READING, rows.values()) == FETCH


# --- a cluster -----------------------------------------------------------------------------------


class Broker:
    """Stands for the connection to a broker: the answers it gives, or what it raises."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.is_closed = False

    def ask(self, api_key: int, body: object, version: int | None = None) -> object:
        if self.is_closed:
            raise OSError("closed")
        self.asked.append(api_key)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed = True


def cluster_of(monkeypatch: pytest.MonkeyPatch, **brokers: object) -> Cluster:
    """A cluster whose brokers, by host, are these; an exception is that of connecting."""
    cluster = Cluster(ADDRESSES, "me", 1)

    def connect(address: tuple[str, int]) -> object:
        found = brokers[address[0]]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cluster, "connect", connect)
    return cluster


def described(name: str = "t", error: int = 0, leaders: tuple[int, ...] = (1,)) -> dict:
    """A Metadata answer with one topic, and one more broker."""
    partitions = [{"partition_index": i, "leader_id": each} for i, each in enumerate(leaders)]
    topic = {
        "name": name,
        "error_code": error,
        "is_internal": False,
        "partitions": partitions,
        "topic_authorized_operations": NOT_SAID,
    }
    return {"brokers": [{"node_id": 7, "host": "c", "port": 3}], "topics": [topic]}


def test_the_next_broker_is_asked_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = Broker(ConnectionError("gone")), Broker({"x": 1}, {"x": 2})
    cluster = cluster_of(monkeypatch, a=dead, b=alive)
    assert cluster.ask_any(METADATA, {}) == {"x": 1}
    assert dead.is_closed
    assert cluster.ask_any(METADATA, {}) == {"x": 2}  # without asking the first one again
    assert dead.asked == [METADATA]


def test_brokers_that_the_cluster_named_are_asked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, a=Broker(described()), b=OSError("no"), c=Broker({"x": 1}))
    cluster.refresh(["t"])
    cluster.close()
    assert cluster.ask_any(METADATA, {}) == {"x": 1}


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(monkeypatch, a=OSError("one"), b=OSError("two"))
    with pytest.raises(NoBrokerFault, match="No broker at a:1,b:2 answered: two"):
        cluster.ask_any(METADATA, {})


def test_after_its_time_no_other_broker_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(cluster_module.clock, "monotonic", lambda: now[0])
    cluster = cluster_of(monkeypatch, a=TimeoutError("late"), b=Broker({"x": 1}))
    assert cluster.ask_any(METADATA, {}, until_s=1.0) == {"x": 1}
    cluster.close()
    now[0] = 2.0
    with pytest.raises(NoBrokerFault, match="late"):
        cluster.ask_any(METADATA, {}, until_s=1.0)


def test_a_topic_with_an_error_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_codes.LEADER_NOT_AVAILABLE
    broker = Broker(described(leaders=(1, -1)), described(error=error, leaders=()))
    cluster = cluster_of(monkeypatch, a=broker)
    assert cluster.refresh(["t", "u"]) == {"t": 0, "u": error_codes.UNKNOWN_TOPIC_OR_PARTITION}
    assert cluster.refresh(["t"]) == {"t": error}
    topic = cluster.topics["t"]
    assert topic == Topic("t", bytes(16), [1, -1])
    assert [topic.leader_of(i) for i in (-1, 0, 1, 2)] == [-1, 1, -1, -1]


def test_a_broker_that_is_not_known_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(OSError("gone"))
    cluster = cluster_of(monkeypatch, a=Broker(described()), c=broker)
    with pytest.raises(ConnectionError, match="broker 7 is not in the cluster"):
        cluster.ask_broker(7, FETCH, {})
    cluster.refresh(["t"])
    with pytest.raises(OSError, match="gone"):
        cluster.ask_broker(7, FETCH, {})
    assert broker.is_closed


def test_the_command_line_names_who_does_not_answer() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
        text = rf"^127\.0\.0\.1:{address[1]} gives no answer to Metadata: .*refused"
        with pytest.raises(ClusterFault, match=text):
            ask([address], METADATA, METADATA_BODY)


# --- retries -------------------------------------------------------------------------------------


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rests taken; time passes by them alone."""
    taken: list[float] = []
    monkeypatch.setattr(retries.clock, "monotonic", lambda: sum(taken))
    monkeypatch.setattr(retries.clock, "sleep", taken.append)
    return taken


def failing(*outcomes: object):
    """What raises or gives these, one after the other; the last one for ever."""
    left = list(outcomes)

    def ask() -> object:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return ask


def test_what_passes_is_tried_again_after_rests_that_grow(rests: list[float]) -> None:
    passing = (LaterFault("a"), OSError("b"), ProtocolFault("c"), LaterFault("d"))
    looks: list[int] = []
    found = retries.patiently(failing(*passing, 5), 60, before_retry=lambda: looks.append(1))
    assert found == 5
    assert rests == [0.1, 0.2, 0.4, 0.4]
    assert len(looks) == 4


@pytest.mark.parametrize("fault", [RefusedFault("no"), ConfigFault("no"), KeyError("no")])
def test_what_does_not_pass_is_told_at_once(rests: list[float], fault: Exception) -> None:
    with pytest.raises(type(fault), match="no"):
        retries.patiently(failing(fault), 60)
    assert not rests


def test_time_is_over(rests: list[float]) -> None:
    with pytest.raises(ClusterFault, match=r"^no answer within 1 s, at last: gone$") as told:
        retries.patiently(failing(OSError("gone")), 1)
    assert not isinstance(told.value, RefusedFault)
    assert sum(rests) <= 1
    assert len(rests) == 3


def test_an_error_that_stays_is_a_refusal(rests: list[float]) -> None:
    def ask() -> None:
        refuse(error_codes.NOT_LEADER_OR_FOLLOWER, "t-0")

    with pytest.raises(RefusedFault, match=r"the quorum within 1 s, at last: t-0: NOT_LEADER"):
        retries.patiently(ask, 1, "the quorum")


def test_a_kind_that_is_final(rests: list[float]) -> None:
    with pytest.raises(ClusterFault, match="garbage"):
        retries.patiently(failing(ProtocolFault("garbage"), 5), 60, final=ProtocolFault)
    assert not rests


def test_a_topic_that_stays_unknown_is_not_waited_for_as_long(
    rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(monkeypatch)
    error = error_codes.UNKNOWN_TOPIC_OR_PARTITION
    monkeypatch.setattr(cluster, "refresh", lambda names: dict.fromkeys(names, error))
    with pytest.raises(ClusterFault, match="topic t: UNKNOWN_TOPIC_OR_PARTITION"):
        questions.find_topic(cluster, "t", 60)
    assert questions.UNKNOWN_TOPIC_S <= sum(rests) < questions.UNKNOWN_TOPIC_S + 1


# --- faults --------------------------------------------------------------------------------------


def test_errors_that_may_pass() -> None:
    refuse(error_codes.NONE, "t")
    with pytest.raises(LaterFault, match=r"^t: NOT_LEADER_OR_FOLLOWER \("):
        refuse(error_codes.NOT_LEADER_OR_FOLLOWER, "t")
    with pytest.raises(RefusedFault, match=r"^t: so it is$") as told:
        refuse(error_codes.INVALID_CONFIG, "t", "so it is")
    assert not isinstance(told.value, LaterFault)


def test_an_advice_is_told_in_the_words_of_who_knows() -> None:
    fault = DataLossFault("gone", faults.ACCEPT_LOSS)
    assert str(fault) == "gone (reading can be told to go on without them)"
    told = fault.in_words({faults.ACCEPT_LOSS: ": say so"})
    assert type(told) is DataLossFault
    assert str(told) == "gone: say so"
    assert str(told.in_words({faults.ACCEPT_LOSS: "!"})) == "gone: say so"
    assert str(fault.in_words({})) == str(fault)
    assert str(DataLossFault("gone").in_words({faults.ACCEPT_LOSS: "!"})) == "gone"


def test_a_user_of_the_client_tells_advices_in_its_words() -> None:
    cause = OSError("why")

    @faults.told_in({faults.ACCEPT_LOSS: ": say so"})
    def told(fault: Exception) -> None:
        raise fault from cause

    with pytest.raises(DataLossFault, match=r"^gone: say so$") as raised:
        told(DataLossFault("gone", faults.ACCEPT_LOSS))
    assert raised.value.__cause__ is cause
    for other in (DataLossFault("gone", faults.CAN_FETCH), ClusterFault("no"), ConfigFault("no")):
        with pytest.raises(type(other)) as raised:
            told(other)
        assert raised.value is other


def test_faults_are_pickled_whole() -> None:
    fault = pickle.loads(pickle.dumps(DataLossFault("gone", faults.ACCEPT_LOSS)))
    assert isinstance(fault, Fault)
    assert (fault.text, fault.advice) == ("gone", faults.ACCEPT_LOSS)


def test_spark_and_arrow_have_words_for_every_advice() -> None:
    pytest.importorskip("pyarrow")
    from shmbroker.arrow import reader
    from shmbroker.spark.reading import WORDS

    every = {
        faults.ACCEPT_LOSS,
        faults.RUN_AS_OWNER,
        faults.NAME_DIRECTORY,
        faults.GIVE_DIRECTORY,
        faults.CAN_FETCH,
    }
    assert set(WORDS) == set(reader.WORDS) == every
