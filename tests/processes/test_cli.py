"""The command against a real broker: each sub-command as a process, as a user runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.testing.broker import Broker

TIMEOUT_S = 60
WORDS = [sys.executable, "-m", "shmbroker"]


class Shell:
    """Runs `shmbroker …` against one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.environment = {**os.environ, "SHMBROKER_BOOTSTRAP_SERVER": broker.address}

    def run(self, *words: str, given: bytes | str = b"", status: int = 0) -> bytes:
        """What it writes to stdout; `errors` keeps what it says on stderr."""
        given = given.encode() if isinstance(given, str) else given
        ran = subprocess.run(
            [*WORDS, *words],
            input=given,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
        )
        self.errors = ran.stderr.decode()
        assert ran.returncode == status, (words, ran.returncode, ran.stdout[-300:], self.errors)
        assert "Traceback" not in self.errors
        return ran.stdout

    def text(self, *words: str, **how: Any) -> str:
        return self.run(*words, **how).decode()

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*WORDS, *words], stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment
        )


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with Broker("--set", "group.initial.rebalance.delay.ms=0") as broker:
        yield Shell(broker)


def lines(shell: Shell, topic: str, *words: str) -> list[str]:
    return shell.text("consume", topic, "-e", *words).splitlines()


# --- topics --------------------------------------------------------------------------------------


def test_life_of_a_topic(shell: Shell) -> None:
    shell.run("topic", "create", "life", "-p", "2", "--config", "retention.ms=-1")
    shell.run("topic", "create", "life", status=1)
    assert "already exists" in shell.errors
    shell.run("topic", "create", "life", "--if-not-exists")
    (row,) = [row for row in shell.json("topic", "list") if row["name"] == "life"]
    assert row == {"name": "life", "partitions": 2, "replicas": 1}
    (topic,) = shell.json("topic", "describe", "life")
    assert topic["configs"] == {"retention.ms": "-1"}
    assert topic["partitions"] == [
        {"partition": number, "leader": 1, "replicas": [1], "isr": [1]}
        | {"start": 0, "end": 0, "bytes": 0}
        for number in range(2)
    ]
    metadata = shell.broker.data / "node-1" / "life-0" / "partition.metadata"
    assert topic["id"] == metadata.read_text().split()[-1]
    shell.run("topic", "alter", "life", "--partitions", "3")
    shown = shell.text("topic", "describe", "lif*").splitlines()
    assert shown[0].startswith("life  id ")
    assert [line.split()[0] for line in shown[1:]] == ["PARTITION", "0", "1", "2"]
    assert shell.json("topic", "describe", "--under-replicated") == []
    shell.run("topic", "delete", "li?e", status=1)
    assert "--yes" in shell.errors
    shell.run("topic", "delete", "li?e", "--yes")
    shell.run("topic", "describe", "life", status=1)
    assert "there is no topic life" in shell.errors
    shell.run("topic", "delete", "life", "--if-exists")


def test_looking_for_a_topic_does_not_make_it(shell: Shell) -> None:
    for words in (["topic", "describe"], ["consume", "-e"], ["topic", "delete"]):
        shell.run(*words, "not-there", status=1)
        assert "there is no topic not-there" in shell.errors
    assert "not-there" not in shell.text("topic", "list")


# --- produce and consume -------------------------------------------------------------------------


def test_lines_go_in_and_come_out(shell: Shell) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    shell.run("produce", "lines", given=text)
    assert shell.text("consume", "lines", "-e") == text
    assert lines(shell, "lines", "-o", "-3") == ["line 19997", "line 19998", "line 19999"]
    assert lines(shell, "lines", "-o", "19998") == ["line 19998", "line 19999"]
    assert lines(shell, "lines", "-o", "latest") == []
    assert lines(shell, "lines", "-c", "2") == ["line 0", "line 1"]


def test_bytes_stay_what_they_are(shell: Shell) -> None:
    values = [bytes([number]) * 3 for number in range(1, 256)]
    shell.run("produce", "bytes", "-D", r"\0", given=b"\0".join(values))
    assert shell.run("consume", "bytes", "-e", "-D", r"\0") == b"\0".join(values) + b"\0"
    framed = b"".join(b"\0\0\0\3" + value for value in values)
    assert shell.run("consume", "bytes", "-e", "-f", "%R%s") == framed


def test_keys_headers_partitions_nulls(shell: Shell, tmp_path: Path) -> None:
    shell.run("topic", "create", "fields", "-p", "3")
    words = ["produce", "-t", "fields", "-K", ":", "--keyless", "-Z", "-p", "2"]
    shell.run(*words, given="a:1\nb:\nc\n")
    assert "1 of 3 lines had no ':' and became values without keys; the first" in shell.errors
    shell.run("produce", "fields", "-k", "k", "-H", "h=1", "-H", "i=2", "-p", "1", given="x")
    file = tmp_path / "input"
    file.write_text("from a file")
    shell.run("produce", "fields", "-l", str(file), "-z", "zstd", "--acks", "1", "-p", "0")
    shown = lines(shell, "fields", "-Z", "-f", r"%p:%o %k=%s %K,%S [%h]\n")
    assert sorted(shown) == [
        "0:0 NULL=from a file -1,11 []",
        "1:0 k=x 1,1 [h=1,i=2]",
        "2:0 a=1 1,1 []",
        "2:1 b=NULL 1,-1 []",
        "2:2 NULL=c -1,1 []",
    ]
    assert lines(shell, "fields", "-p", "2", "-K", "=") == ["a=1", "b=", "=c"]
    shell.run("consume", "fields", "-p", "3", "-e", status=1)
    assert "no partition 3, only 0 to 2" in shell.errors


def test_line_without_a_key_is_not_stored_unasked(shell: Shell) -> None:
    shell.run("produce", "strict", "-K", ":", given="a:1\nb\nc:2\n", status=1)
    assert "line 2 has no ':' to end its key" in shell.errors
    assert lines(shell, "strict") == ["1"]


def test_offsets_are_told(shell: Shell) -> None:
    shell.run("topic", "create", "told", "-p", "3")
    shown = shell.text("produce", "told", "-p", "1", "--print-offsets", "-v", given="a\nb\n")
    assert shown == "1 0\n1 1\n"
    assert "2 records delivered: 2 to told-1, offsets 0 to 1" in shell.errors
    shell.run("produce", "told", "-p", "2", "-c", "1", given="c\nd\n")
    assert shell.errors == ""
    (topic,) = shell.json("topic", "describe", "told")
    assert [(row["start"], row["end"]) for row in topic["partitions"]] == [(0, 0), (0, 2), (0, 1)]
    directory = shell.broker.data / "node-1" / "told-1"
    dumped = shell.run("log", "dump", f"{directory}/{0:020}.log", "--json").splitlines()
    assert topic["partitions"][1]["bytes"] == sum(json.loads(line)["size"] for line in dumped)
    shell.run("produce", "told", "--acks", "0", "-v", status=2)


def test_words_of_kcat(shell: Shell) -> None:
    shell.run("topic", "create", "kcat", "--config", "retention.ms=-1")
    given = '{"key":"k","value":"a","timestamp":5000}\n{"payload":"b","ts":7000}\n'
    shell.run("produce", "-t", "kcat", "-p", "-1", "--json", given=given)
    words = ["-t", "kcat", "-b", shell.broker.address, "-e", "-q", "-u"]
    found = [json.loads(line) for line in shell.run("consume", *words, "-J").splitlines()]
    assert [(row["tstype"], row["ts"], row["key"], row["payload"]) for row in found] == [
        ("create", 5000, "k", "a"),
        ("create", 7000, None, "b"),
    ]
    assert shell.text("consume", "-Q", "-t", "kcat:0:6000") == "kcat [0] offset 1\n"
    assert shell.json("consume", "-Q", "kcat::1970-01-01T00:00:08") == [
        {"topic": "kcat", "partition": 0, "offset": -1}
    ]
    assert shell.text("consume", "-G", "kcat", "kcat", "-e", "-o", "beginning") == "a\nb\n"


def test_offset_beyond_the_end_is_told(shell: Shell) -> None:
    shell.run("produce", "short", given="a\nb\n")
    assert lines(shell, "short", "-o", "99999999999") == []
    assert "offset 99999999999 is beyond the end of short-0 (offsets 0 to 1)" in shell.errors
    with shell.start("consume", "short", "-o", "99999999999") as reading:
        assert reading.stderr and b": waiting for new records" in reading.stderr.readline()
        shell.run("produce", "short", given="c\n")
        assert reading.stdout and reading.stdout.readline() == b"c\n"
        reading.terminate()
        assert reading.wait(TIMEOUT_S) == 143


def test_topics_by_pattern(shell: Shell) -> None:
    shell.run("topic", "create", "pattern-a", "pattern-b", "patter")
    for topic in ("pattern-a", "pattern-b", "patter"):
        shell.run("produce", topic, given=f"{topic}\n")
    for group in ([], ["--group"]):
        by_glob = shell.text("consume", "pattern-?", "-e", *group, *["glob" for _ in group])
        assert sorted(by_glob.splitlines()) == ["pattern-a", "pattern-b"]
        pattern = "^patter(n-b)?$"
        found = shell.text("consume", pattern, "-e", *group, *["expression" for _ in group])
        assert sorted(found.splitlines()) == ["patter", "pattern-b"]
    shell.run("consume", "^no-such", "-e", status=1)
    assert "there is no topic ^no-such" in shell.errors
    words = ["--group", "late", "-X", "topic.metadata.refresh.interval.ms=100"]
    with shell.start("consume", "late-*", *words) as reading:
        assert reading.stderr and b"no topic matches late-* yet" in reading.stderr.readline()
        shell.run("produce", "late-1", given="late\n")
        assert reading.stdout and reading.stdout.readline() == b"late\n"
        reading.terminate()
        assert reading.wait(TIMEOUT_S) == 143


def test_keys_go_where_java_puts_them(shell: Shell) -> None:
    shell.run("topic", "create", "keyed", "-p", "3")
    shell.run("produce", "keyed", "-K", ":", given="".join(f"{key}:\n" for key in "abcdef"))
    # murmur2 of the key, modulo 3
    assert sorted(lines(shell, "keyed", "-f", r"%k%p\n")) == ["a1", "b2", "c1", "d2", "e2", "f0"]


def test_json_goes_round(shell: Shell) -> None:
    given = (
        '{"key":"k","value":{"a":[1,null]},"headers":{"h":"1"},"timestamp":1234567890123}\n\n'
        '{"value_base64":"//8=","key":null,"partition":0}\n'
    )
    shell.run("topic", "create", "first", "second", "--config", "retention.ms=-1")
    shell.run("produce", "first", "--json", given=given)
    first = shell.run("consume", "first", "-e", "--json")
    shell.run("produce", "second", "--json", given=first)
    found = [json.loads(line) for line in lines(shell, "second", "--json")]
    assert [row["value"] if "value" in row else row["value_base64"] for row in found] == [
        '{"a":[1,null]}',
        "//8=",
    ]
    assert found[0]["timestamp"] == 1234567890123
    assert found[0]["headers"] == [{"key": "h", "value": "1"}]
    assert [row["offset"] for row in found] == [0, 1]


def test_json_that_is_none_is_named_after_what_came_before(shell: Shell) -> None:
    shell.run("produce", "half", "--json", given='{"value":"a"}\n{"value":\n', status=1)
    assert "line 2 describes no record" in shell.errors
    assert lines(shell, "half") == ["a"]


def test_moments_bound_what_is_read(shell: Shell) -> None:
    shell.run("topic", "create", "moments", "--config", "retention.ms=-1")
    given = "".join(f'{{"value":"{n}","timestamp":{1000 * n}}}\n' for n in range(1, 10))
    shell.run("produce", "moments", "--json", given=given)
    assert lines(shell, "moments", "-o", "@7000") == ["7", "8", "9"]
    assert lines(shell, "moments", "-o", "@1970-01-01T00:00:07.001") == ["8", "9"]
    assert shell.text("consume", "moments", "-o", "@2000", "-o", "e@4000") == "2\n3\n"
    assert lines(shell, "moments", "-o", "@2100-01-01") == []


def test_words_of_the_console_consumer(shell: Shell) -> None:
    shell.run("topic", "create", "console")
    shell.run("produce", "console", given="a\nb\nc\n")
    kept = ("consume", "console", "--from-beginning", "--timeout-ms", "500")
    assert shell.text(*kept, "--max-messages", "2") == "a\nb\n"
    assert shell.text(*kept) == "a\nb\nc\n"
    assert shell.text(*kept, "--group", "console") == "a\nb\nc\n"
    assert shell.text("consume", "console", "-o", "latest", "--timeout-ms", "100") == ""


def test_undelivered_records_are_counted(shell: Shell) -> None:
    shell.run("topic", "create", "small", "--config", "max.message.bytes=1000")
    shell.run("produce", "small", given="a\n" + "b" * 5000 + "\n", status=1)
    assert "of 2 records were not delivered" in shell.errors
    shell.run("produce", "small", "-p", "7", given="a\nb\nc", status=1)
    assert "3 of 3 records were not delivered: 3× " in shell.errors


def test_what_trickles_in_comes_out_at_once(shell: Shell) -> None:
    shell.run("topic", "create", "trickle")
    with shell.start("consume", "trickle") as reading, shell.start("produce", "trickle") as writing:
        assert writing.stdin and reading.stdout
        for word in (b"one\n", b"two\n"):
            writing.stdin.write(word)
            writing.stdin.flush()
            assert reading.stdout.readline() == word
        writing.stdin.close()
        assert writing.wait(TIMEOUT_S) == 0
        reading.send_signal(signal.SIGINT)
        assert reading.wait(TIMEOUT_S) == 130
        assert reading.stderr and reading.stderr.read() == b""


def test_interrupted_producer_delivers_what_it_has(shell: Shell) -> None:
    with shell.start("produce", "interrupted") as writing:
        assert writing.stdin
        writing.stdin.write(b"whole\nhalf")
        writing.stdin.flush()
        while lines_or_none(shell, "interrupted") != ["whole"]:
            pass
        writing.send_signal(signal.SIGINT)
        assert writing.wait(TIMEOUT_S) == 130


def lines_or_none(shell: Shell, topic: str) -> list[str] | None:
    if topic not in shell.text("topic", "list"):
        return None
    return lines(shell, topic)


def test_reader_that_leaves_ends_an_idle_consumer(shell: Shell) -> None:
    shell.run("produce", "left", given="1\n2\n3\n")
    with shell.start("consume", "left") as reading:
        assert reading.stdout
        assert reading.stdout.readline() == b"1\n"
        reading.stdout.close()
        assert reading.wait(TIMEOUT_S) == 0
        assert reading.stderr and reading.stderr.read() == b""


# --- groups --------------------------------------------------------------------------------------


def test_life_of_a_group(shell: Shell) -> None:
    shell.run("topic", "create", "work")
    shell.run("produce", "work", given="".join(f"{n}\n" for n in range(10)))
    first = shell.text("consume", "work", "--group", "readers", "-c", "4")
    assert first.splitlines() == ["0", "1", "2", "3"]
    (group,) = shell.json("group", "describe", "readers")
    (row,) = group["partitions"]
    assert (group["state"], row["committed"], row["end"], row["lag"]) == ("empty", 4, 10, 6)
    assert lines(shell, "work", "--group", "readers") == [str(n) for n in range(4, 10)]

    def shown(*words: str) -> tuple[int, int]:
        (row,) = shell.json("group", "reset-offsets", "readers", *words)
        return row["committed"], row["new"]

    assert shown("--all-topics", "--to-earliest") == (10, 0)
    assert "nothing was changed" in shell.errors
    assert shown("--topic", "work:0", "--to-latest") == (10, 10)
    assert shown("--topic", "work", "--shift-by", "-100") == (10, 0)
    assert shown("--topic", "work", "--to-offset", "99") == (10, 10)
    assert shown("--topic", "work", "--to-datetime", "2000-01-01") == (10, 0)
    assert shown("--topic", "work", "--to-datetime", "2100-01-01") == (10, 10)
    assert shown("--topic", "work", "--by-duration", "P1DT1M") == (10, 0)
    assert shown("--topic", "work", "--by-duration", "PT0S", "--dry-run") == (10, 10)
    assert shown("--topic", "work", "--to-current") == (10, 10)
    (row,) = shell.json("group", "reset-offsets", "new", "--topic", "work", "--to-current")
    assert (row["committed"], row["new"]) == (None, 10)
    assert shown("--all-topics", "--shift-by", "-2", "--execute") == (10, 8)
    assert lines(shell, "work", "--group", "readers") == ["8", "9"]

    shell.run("group", "delete-offsets", "readers", "--topic", "work")
    assert shell.json("group", "describe", "readers")[0]["partitions"] == []
    shell.run("group", "delete", "readers")
    shell.run("group", "describe", "readers", status=1)
    assert "there is no group readers" in shell.errors
    assert "readers" not in shell.text("group", "list")


def test_group_is_watched(shell: Shell) -> None:
    shell.run("produce", "watched", given="1\n")
    shell.run("consume", "watched", "--group", "watched", "-e")
    with shell.start("group", "describe", "watched", "--watch", "0.1", "--json") as watching:
        assert watching.stdout

        def lag() -> int:
            assert watching.stdout
            (group,) = json.loads(watching.stdout.readline())
            return int(group["partitions"][0]["lag"])

        assert lag() == 0
        shell.run("produce", "watched", given="2\n")
        while lag() != 1:
            pass
        watching.send_signal(signal.SIGINT)
        assert watching.wait(TIMEOUT_S) == 130
    shell.run("group", "describe", "--watch", "watched", status=2)
    assert "put GROUP before --watch" in shell.errors


def test_status_of_a_cluster(shell: Shell) -> None:
    shell.run("topic", "create", "status", "-p", "2")
    shell.run("produce", "status", "-p", "1", given="1\n2\n")
    shell.run("consume", "status", "--group", "status", "-c", "1")
    found = shell.json("status")
    assert found["problems"] == found["offline"] == found["under_replicated"] == []
    (broker,) = found["brokers"]
    assert f"{broker['host']}:{broker['port']}" == shell.broker.address
    (directory,) = broker["log_dirs"]
    assert directory["path"] == str(shell.broker.data / "node-1")
    assert 0 < directory["free_bytes"] < directory["disk_bytes"]
    assert found["quorum"] == {"leader": 1, "epoch": 1, "voters": [1], "absent": [], "behind": 0}
    assert {"group": "status", "state": "empty", "lag": 1} in found["groups"]
    assert found["topics"] == len(shell.json("topic", "list"))
    assert found["partitions"] == directory["partitions"]
    shown = shell.text("status").splitlines()
    assert shown[0].endswith(", ok")
    assert any(line.split() == ["status", "empty", "1"] for line in shown)


def test_demo_does_not_begin_what_it_can_not_do(shell: Shell) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "demo_flights.py"

    def check(address: str) -> tuple[int, str]:
        words = [sys.executable, "-S", str(script), "--check", "--into", address]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
        return ran.returncode, ran.stderr

    assert check(shell.broker.address) == (0, "")
    shell.run("topic", "create", "flights")
    status, said = check(shell.broker.address)
    assert (status, said.split(";")[0]) == (
        1,
        f"demo: topic flights exists at {shell.broker.address}",
    )
    shell.run("topic", "delete", "flights")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        status, said = check(f"127.0.0.1:{unused.getsockname()[1]}")
    assert status == 1
    assert "Connection refused" in said
    assert check("nowhere")[0] == 1


def test_group_at_work_is_left_alone(shell: Shell) -> None:
    shell.run("produce", "busy", given="1\n")
    with shell.start("consume", "busy", "--group", "busy") as reading:
        assert reading.stdout and reading.stdout.readline() == b"1\n"
        (group,) = shell.json("group", "describe", "busy")
        assert [member["partitions"] for member in group["members"]] == [["busy-0"]]
        assert group["partitions"][0]["member"] == group["members"][0]["member"]
        assert [row["group"] for row in shell.json("group", "list", "--state", "stable")] == [
            "busy"
        ]
        shell.run(
            *["group", "reset-offsets", "busy", "--all-topics", "--to-earliest", "--execute"],
            status=1,
        )
        assert "is stable, with 1 members" in shell.errors
        shell.run("group", "delete", "busy", status=1)
        assert "stop its members first" in shell.errors
        reading.terminate()
        assert reading.wait(TIMEOUT_S) == 143
    (group,) = shell.json("group", "describe", "busy")
    assert (group["state"], group["partitions"][0]["committed"]) == ("empty", 1)


# --- settings ------------------------------------------------------------------------------------


def test_settings_of_a_topic(shell: Shell) -> None:
    shell.run("topic", "create", "set")
    shell.run(
        *[
            "config",
            "set",
            "topic",
            "set",
            "--set",
            "retention.ms=5",
            "--set",
            "segment.bytes=2000000",
        ]
    )
    found = {row["name"]: row for row in shell.json("config", "get", "topic", "set")}
    assert found["retention.ms"] == {"name": "retention.ms", "value": "5", "source": "topic"}
    shell.run("config", "set", "topic", "set", "--delete", "retention.ms")
    (row,) = shell.json("config", "get", "topic", "set", "retention.ms")
    assert (row["value"], row["source"]) == ("604800000", "default")
    shell.run("config", "set", "topic", "set", "--set", "retention.ms=x", status=1)
    assert "Not a number of type LONG" in shell.errors
    shell.run("config", "set", "topic", "set", "--set", "preallocate=true")
    assert shell.errors.startswith("shmbroker: preallocate has no effect here: ")
    shell.run("config", "set", "topic", "set", "--set", "compression.type=producer")
    assert shell.errors == ""
    shell.run("config", "get", "topic", "set", "retention.sm", status=1)
    assert "did you mean retention.ms" in shell.errors
    words = ("retention.ms=7", "segment.ms=8")
    shell.run("config", "set", "topic", "set", *words, "--set", "segment.bytes=3000000")
    found = {row["name"]: row["value"] for row in shell.json("config", "get", "topic", "set")}
    assert [found[name] for name in ("retention.ms", "segment.ms", "segment.bytes")] == [
        "7",
        "8",
        "3000000",
    ]


@pytest.mark.parametrize("name", ["1", "default"])
def test_settings_of_brokers(shell: Shell, name: str) -> None:
    shell.run("config", "set", "broker", name, "--set", "log.retention.ms=86400000")
    found = {row["name"]: row["value"] for row in shell.json("config", "get", "broker", name)}
    assert found["log.retention.ms"] == "86400000"
    shell.run("config", "set", "broker", name, "--delete", "log.retention.ms")
    found = {row["name"]: row["value"] for row in shell.json("config", "get", "broker", name)}
    assert "log.retention.ms" not in found
    shell.run("config", "set", "broker", name, "--set", "log.cleaner.io.buffer.size=600000")
    assert shell.errors.startswith("shmbroker: log.cleaner.io.buffer.size has no effect here: ")
    shell.run("config", "set", "broker", name, "log.retention.m=1")
    assert "log.retention.m changes nothing: it is no setting of a broker; did" in shell.errors
    shell.run("config", "get", "broker", "7", status=1)
    assert "there is no broker 7, only 1" in shell.errors


def test_nothing_to_list_is_one_sentence_beside_stdout() -> None:
    with Broker() as broker:
        fresh = Shell(broker)
        for words, said in (
            ("topic list", "no topic"),
            ("group list", "no group"),
            ("transaction list", "no transactional id"),
            ("transaction find-hanging", "no transaction hangs"),
            ("quota list", "no quota"),
            ("user list", "no user"),
        ):
            assert fresh.run(*words.split()) == b""
            assert fresh.errors == f"shmbroker: {said}\n"
            assert fresh.json(*words.split()) == []


# --- files, bench --------------------------------------------------------------------------------


def test_files_of_a_broker_that_runs(shell: Shell) -> None:
    shell.run("produce", "files", "-K", ":", given="k:v\n")
    directory = shell.broker.data / "node-1"
    segment = directory / "files-0" / f"{0:020}.log"
    batch, record = map(
        json.loads, shell.run("log", "dump", str(segment), "--records", "--json").splitlines()
    )
    assert (batch["base_offset"], batch["is_crc_right"]) == (0, True)
    assert (record["key"], record["value"]) == ("k", "v")
    shell.run("consume", "files", "--group", "file-reader", "-e")
    dumped = shell.text("log", "dump", str(directory), "--records")
    assert 'OffsetCommit v3 {"group":"file-reader","topic":"files","partition":0} = ' in dumped or (
        '{"group":"file-reader","topic":"files","partition":0}' in dumped
    )
    assert '"name":"files"' in dumped
    assert "TopicRecord" in dumped
    shown = shell.text("log", "verify", str(shell.broker.data), "--records")
    assert "BAD" not in shown
    assert f"{directory}/files-0  1 segments, 1 batches, 1 records" in shown


def test_bench_measures_and_cleans_up(shell: Shell) -> None:
    for words in (
        ["produce", "--records", "3000"],
        ["end-to-end", "--records", "50", "--rate", "500"],
    ):
        figures = shell.json("bench", *words)
        assert figures["records"] == int(words[2])
        assert figures["latency_ms"]["p50"] <= figures["latency_ms"]["max"]
    assert "shmbroker-bench" not in shell.text("topic", "list")
    shell.run("bench", "produce", "--records", "3000", "--topic", "benched")
    assert shell.json("bench", "consume", "--topic", "benched")["records"] == 3000


# --- what goes wrong -----------------------------------------------------------------------------


def test_nobody_there_is_said_at_once(shell: Shell) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for words in (
            ["topic", "list"],
            ["produce", "t"],
            ["consume", "t"],
            ["group", "list"],
            ["config", "get", "broker", "default"],
            ["bench", "produce"],
            ["status"],
        ):
            status = 2 if words == ["status"] else 1
            shell.run(*words, "--bootstrap-server", address, status=status)
            assert f"cannot reach {address}: connection refused" in shell.errors
            assert len(shell.errors.splitlines()) == 1


def test_a_server_that_says_nothing_is_given_up(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    held.append(silent.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        shell.run("topic", "list", "--bootstrap-server", address, status=1)
        assert "gives no Kafka answer" in shell.errors
        silent.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def test_tls_is_not_asked_of_a_listener_without_it(shell: Shell) -> None:
    for words in (["produce", "t"], ["consume", "t"], ["topic", "list"], ["status"]):
        shell.run(*words, "-X", "security.protocol=SSL", given="x", status=1)
        assert f"{shell.broker.address} speaks Kafka without TLS" in shell.errors
        assert len(shell.errors.splitlines()) == 1
    sasl = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"]
    sasl += ["sasl.username=u", "sasl.password=${env:HOME}"]
    words = [word for setting in sasl for word in ("-X", setting)]
    shell.run("produce", "t", *words, given="x", status=1)
    assert "was not accepted: SASL PLAIN mechanism handshake failed" in shell.errors
    assert len(shell.errors.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["consume"],
        ["produce"],
        ["produce", "t", "-t", "u"],
        ["produce", "t", "--json", "-K", ":"],
        ["consume", "-Q", "t"],
        ["consume", "t", "--json", "-J"],
        ["consume", "t", "-o", "soon"],
        ["consume", "t", "-f", "%q"],
        ["consume", "t", "-o", "1", "-o", "2"],
        ["consume", "t", "--group", "g", "-o", "-5"],
        ["produce", "t", "-H", "x"],
        ["produce", "t", "-k", "a", "-K", ":"],
        ["topic", "list", "-X", "no.such.setting=1"],
        ["topic", "list", "--bootstrap-server", "a:b:c"],
        ["group", "reset-offsets", "g", "--all-topics"],
        ["group", "reset-offsets", "g", "--to-latest"],
        ["group", "reset-offsets", "g", "--all-topics", "--to-datetime", "soon"],
        ["group", "reset-offsets", "g", "--all-topics", "--by-duration", "soon"],
        ["group", "reset-offsets", "g", "--all-topics", "--to-current", "--to-latest"],
        ["group", "reset-offsets", "g", "--all-topics", "--to-current", "--execute", "--dry-run"],
        ["consume", "t", "--from-beginning", "-o", "latest"],
        ["config", "set", "topic", "t"],
        ["config", "set", "topic", "t", "retention.ms"],
        ["topic", "create"],
    ],
    ids=" ".join,
)
def test_wrong_usage_has_its_own_status(shell: Shell, words: list[str]) -> None:
    shell.run(*words, status=2)
    assert "Error: " in shell.errors


def test_closed_stdout_is_no_traceback(shell: Shell) -> None:
    words = " ".join([*WORDS, "topic", "list", ">&-"])
    ran = subprocess.run(
        ["sh", "-c", words], stderr=subprocess.PIPE, env=shell.environment, timeout=TIMEOUT_S
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_version() -> None:
    ran = subprocess.run([*WORDS, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ran.stdout.startswith("shmbroker, version ")
    code = (
        "import sys; sys.argv = ['shmbroker', '--version']; import shmbroker.cli as c; c.main();"
        "print(sorted({'click', 'confluent_kafka', 'json'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[1] == "[]"
