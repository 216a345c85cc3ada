"""The keys that tokens are signed with, read by another thread."""

import json
import logging
import socket
import threading
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from shmbroker import clock
from shmbroker.gateway.jwks import SOON_S, Jwks, path_of, read_url
from tests.support.family_memory import VirtualClock
from tests.support.waiting import wait_until


def key_set(*names: str) -> bytes:
    keys = [ECKey.generate_key("P-256", {"kid": name}).as_dict(private=False) for name in names]
    return json.dumps({"keys": keys}).encode()


def wait_for(jwks: Jwks, *names: str) -> None:
    wait_until(lambda: [key.key_id for key in jwks.known()] == list(names), f"keys {names}")


def test_keys_are_read_by_another_thread(tmp_path: Path) -> None:
    file = tmp_path / "a b.json"
    file.write_bytes(key_set("one"))
    jwks = Jwks(clock, file.as_uri(), 3600, 0.1, 1)
    assert jwks.known() == ()
    jwks.begin()
    assert [key.key_id for key in jwks.known()] == ["one"]  # who comes first finds them
    file.write_bytes(key_set("one", "two"))
    jwks.want()
    wait_for(jwks, "one", "two")


def test_what_is_unreadable_leaves_the_keys_that_were_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = [key_set("one"), b"nonsense", b"[" * 100_000, json.dumps({"keys": []}).encode()]
    jwks = Jwks(clock, "https://issuer/keys", 3600, 0.1, 1, lambda url: found.pop(0))
    assert jwks.look()
    for _ in range(3):
        assert not jwks.look()
    assert [key.key_id for key in jwks.known()] == ["one"]
    assert [record.exc_info for record in caplog.records] == [None] * 3


def test_a_url_that_stays_away_is_told_of_once_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    reasons = ["gone", "gone", "gone", "timed out", ""]

    def read(url: str) -> bytes:
        if reason := reasons.pop(0):
            raise OSError(reason)
        return key_set("one")

    jwks = Jwks(clock, "https://issuer/keys", 3600, 0.1, 1, read)
    assert [jwks.look() for _ in range(5)] == [False] * 4 + [True]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "the keys of https://issuer/keys can't be read: gone; it is tried again and again",
        "the keys of https://issuer/keys can't be read: timed out; it is tried again and again",
        "the keys of https://issuer/keys can be read again",
    ]


def test_a_url_that_can_not_be_had_is_tried_again() -> None:
    tries = []

    def read(url: str) -> bytes:
        tries.append(url)
        if len(tries) < 3:
            raise OSError("nobody there")
        return key_set("one")

    jwks = Jwks(clock, "https://issuer/keys", 3600, 0.001, 0.01, read)
    jwks.begin()
    wait_for(jwks, "one")
    assert len(tries) == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_a_url_is_not_asked_without_end_where_the_settings_have_no_rest(is_there: bool) -> None:
    """Time stands still: no try is due, but for one that is wanted."""
    moved = VirtualClock()
    reads = []

    def read(url: str) -> bytes:
        reads.append(url)
        if not is_there:
            raise OSError("nobody there")
        return key_set("one")

    jwks = Jwks(moved, "https://issuer/keys", 0, 0, 0, read)
    jwks.begin()
    jwks.want()
    wait_until(lambda: len(reads) > 1, "the one that is wanted")
    moved.now += SOON_S
    jwks.want()
    wait_until(lambda: len(reads) > 2, "another one")
    assert len(reads) == 3


def test_an_answer_that_is_no_http_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for content in (b"garbage", b"HTTP/1.1 200 OK\r\n\r\n" + key_set("one")):
                with server.accept()[0] as client:
                    client.recv(4096)
                    client.sendall(content)

        threading.Thread(target=serve, daemon=True).start()
        jwks = Jwks(clock, f"http://127.0.0.1:{server.getsockname()[1]}/keys", 3600, 0.01, 0.1)
        jwks.begin()
        wait_for(jwks, "one")
    (line,) = caplog.messages
    assert "BadStatusLine" in line


@pytest.mark.parametrize("fault", [RuntimeError("a library's own"), AttributeError("of none")])
def test_whatever_a_library_raises_leaves_the_keys_that_were_there(fault: Exception) -> None:
    tries = []

    def read(url: str) -> bytes:
        tries.append(url)
        if len(tries) == 2:
            raise fault
        return key_set("one")

    jwks = Jwks(clock, "https://issuer/keys", 3600, 0.1, 1, read)
    assert [jwks.look() for _ in range(3)] == [True, False, True]


def test_unknown_keys_do_not_have_them_read_without_end() -> None:
    moved = VirtualClock()
    reads: list[str] = []

    def read(url: str) -> bytes:
        reads.append(url)
        return key_set("one")

    jwks = Jwks(moved, "https://issuer/keys", 3600, 0.1, 1, read)
    jwks.want()
    assert jwks.is_wanted
    jwks.begin()
    assert not jwks.is_wanted
    moved.now += SOON_S / 2
    jwks.want()
    assert not jwks.is_wanted
    moved.now += SOON_S / 2
    jwks.want()
    wait_until(lambda: len(reads) == 2, "the keys once more")


def test_a_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="more than"):
        read_url(file.as_uri())
    assert path_of("https://issuer/keys") is None
