"""Which broker gets which of the sockets that a service manager passes."""

import os
import socket

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.processes import activation
from shmbroker.processes.activation import WantedPorts, assign

HERE = "127.0.0.1"


@pytest.mark.parametrize(
    ("addresses", "wanted", "expected"),
    [
        ([], WantedPorts(2, "", 0), [None, None]),
        ([(HERE, 9092)], WantedPorts(1, "", 0), [0]),
        ([(HERE, 9300), (HERE, 9200)], WantedPorts(3, "", 0), [0, 1, None]),
        ([(HERE, 9094), (HERE, 9092)], WantedPorts(3, "", 9092), [1, None, 0]),
        ([("0.0.0.0", 9092)], WantedPorts(1, "192.0.2.1", 0), [0]),
        ([(HERE, 9092)], WantedPorts(1, "kafka.example", 0), [0]),
        ([("::1", 9092)], WantedPorts(1, "0:0::1", 0), [0]),
    ],
)
def test_sockets_go_to_brokers(
    addresses: list[tuple[str, int]], wanted: WantedPorts, expected: list[int | None]
) -> None:
    assert assign(addresses, wanted) == expected


@pytest.mark.parametrize(
    ("addresses", "wanted", "said"),
    [
        ([(HERE, 1), (HERE, 2)], WantedPorts(1, "", 0), "2 ports are passed for 1 brokers"),
        ([(HERE, 9092)], WantedPorts(1, "", 9192), "shmbroker.port is 9192"),
        ([(HERE, 9093)], WantedPorts(1, "", 9092), "shmbroker.port is 9092"),
        ([(HERE, 9092)], WantedPorts(1, "192.0.2.1", 0), "shmbroker.host is 192.0.2.1"),
    ],
)
def test_what_contradicts_the_settings_is_refused(
    addresses: list[tuple[str, int]], wanted: WantedPorts, said: str
) -> None:
    with pytest.raises(ConfigFault, match=said):
        assign(addresses, wanted)


def test_what_is_passed_to_another_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid() + 1))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert activation.passed() == []


@pytest.mark.parametrize("is_listening", [True, False])
def test_sockets_are_taken_once_and_not_inherited(
    monkeypatch: pytest.MonkeyPatch, is_listening: bool
) -> None:
    made = socket.create_server((HERE, 0)) if is_listening else socket.socket()
    os.set_inheritable(made.fileno(), True)
    monkeypatch.setattr(activation, "FIRST_FD", made.fileno())
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    if not is_listening:
        with pytest.raises(ConfigFault, match="none that listens on a TCP port"):
            activation.passed()
        made.detach()
        return
    (taken,) = activation.passed()
    assert taken.getsockname() == made.getsockname()
    assert not os.get_inheritable(taken.fileno())
    assert activation.passed() == []
    made.detach()
    taken.close()
