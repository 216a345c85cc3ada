"""What is asked in the wrong way or place, and the sentence that says how to do it right."""

import builtins
import errno
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import shmbroker
from shmbroker.cli.client import TargetCluster
from shmbroker.cli.commands import main
from shmbroker.cli.outcome import CommandEnding, say, sentence
from shmbroker.client import admin
from shmbroker.client.faults import ClusterFault, DeniedFault
from shmbroker.errors import ConfigFault, StorageFault, plain
from shmbroker.log import checkpoints
from shmbroker.log.meta_properties import read_meta_properties
from shmbroker.observe import attach
from shmbroker.processes import data_directory
from shmbroker.processes.held_directory import HeldDirectory
from shmbroker.processes.listening import listen_on
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.files import read_settings
from shmbroker.testing.broker import free_ports
from shmbroker.tools import log_files, log_repair
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
    SECURITY_DISABLED,
)

ALLOW = ["acl", "add", "--allow", "User:a", "--operation", "read"]


def refused(*words: str, status: int = 1) -> str:
    """The sentence of a command that fails."""
    ran = CliRunner().invoke(main, words, prog_name="shmbroker")
    assert ran.exit_code == status, ran.output
    return ran.output


@pytest.mark.parametrize(
    "words",
    [
        ["quota", "list"],
        ["quota", "set", "--default-user", "producer_byte_rate=1"],
        ["quota", "remove", "--user", "a"],
    ],
    ids=" ".join,
)
def test_quota_says_where_no_broker_is(words: list[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)}"
    said = refused(*words, "-b", address)
    assert f"cannot reach {address}: connection refused; is a broker running there?" in said


def test_empty_server_is_not_taken_for_the_default() -> None:
    said = refused("topic", "delete", "t", "-b", "", status=2)
    assert "--bootstrap-server is empty: it takes HOST:PORT" in said


def test_ingest_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "this needs PySpark: pip install" in refused("ingest", "t", "--to", "x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quota", "set", "--user", "a", "producer_byte_rate=nan"], "takes a number, not 'nan'"),
        (["quota", "set", "--user", "a", "producer_byte_rate=inf"], "takes a number, not 'inf'"),
        (["user", "add", ""], "A user has a name: it is empty"),
        ([*ALLOW, "--topic", ""], "A resource has a name"),
        ([*ALLOW, "--topic", "t", "--host", "db.example.org"], "--host takes an address"),
        ([*ALLOW, "--operation", "write", "--topic", "t", "--group", "g"], "write is no operation"),
        ([*ALLOW, "--transactional-id", "t"], "which has: all, write, describe, two-phase-commit"),
    ],
)
def test_what_can_not_be_meant_is_wrong_usage(words: list[str], said: str) -> None:
    assert said in refused(*words, "-b", "127.0.0.1:1", status=2)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_stdout_can_not_take_ends_with_a_sentence_and_the_status_of_a_failure(
    unbuffered: str,
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "shmbroker", "config", "explain"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert ran.stderr == "shmbroker: stdout can't be written: No space left on device\n"
    assert ran.returncode == 1


def test_secret_that_can_not_be_written_is_asked_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token would be made, and nobody could use it."""
    monkeypatch.setattr(TargetCluster, "check_reachable", lambda _: None)
    monkeypatch.setattr(admin, "create_token", lambda *_: pytest.fail("it was asked for"))
    place = str(tmp_path / "none" / "secret")
    said = refused("token", "create", "--secret-to", place, "-b", "127.0.0.1:1")
    assert said == f"shmbroker: {place}: No such file or directory\n"


def test_password_file_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    file = str(tmp_path / "password")
    said = refused("user", "add", "a", "--password-file", file, "-b", "127.0.0.1:1")
    assert said.count(file) <= 1
    assert "Errno" not in said


def test_numbers_of_the_kernel_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"can't write a: {OSError(errno.ENOSPC, 'No space left on device', 'a')}")
    assert capsys.readouterr().err == "shmbroker: can't write a: No space left on device: 'a'\n"


@pytest.mark.parametrize(
    ("error", "needs"),
    [
        (DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key"),
        (DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "sasl.enabled.mechanisms"),
    ],
)
def test_tokens_that_are_not_told_name_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, error: int, needs: str
) -> None:
    monkeypatch.setattr(admin, "ask", lambda *_: {"error_code": error, "tokens": []})
    with pytest.raises(ClusterFault, match=f"tokens are not told: .*{needs}"):
        admin.tokens([])


@pytest.mark.parametrize("version", [(2, 7), (3, 10)])
def test_python_that_is_too_old_is_told_so(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 1))
    with pytest.raises(SystemExit, match=f"this is Python {version[0]}.{version[1]}, and 3.11"):
        runpy.run_path(str(Path(shmbroker.__file__).with_name("__main__.py")), run_name="__main__")


def test_acls_that_are_not_told_name_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the authorizer alone nobody could add one."""
    refusal = {"error_code": SECURITY_DISABLED, "error_message": None}
    monkeypatch.setattr(admin, "ask", lambda *_: refusal)
    with pytest.raises(ClusterFault, match=r"has no authorizer: .*super\.users="):
        admin.acls([], [{}])


@pytest.mark.parametrize(
    ("ask", "right"),
    [
        (lambda: admin.acls([], [{}]), "describe"),
        (lambda: admin.client_quotas([], []), "describe-configs"),
    ],
    ids=["acls", "quotas"],
)
def test_who_lacks_a_right_on_the_cluster_is_told_which(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object], right: str
) -> None:
    refusal = {"error_code": CLUSTER_AUTHORIZATION_FAILED, "error_message": "no", "entries": None}
    monkeypatch.setattr(admin, "ask", lambda *_: refusal)
    with pytest.raises(DeniedFault, match=f"not authorized for the cluster; .* {right} --cluster`"):
        ask()


def test_name_that_is_no_text_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"a\xff")
    monkeypatch.setattr(sys, "argv", ["shmbroker", "topic", "create", name])
    with pytest.raises(SystemExit) as ended, CommandEnding():
        name.encode()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "shmbroker: a\\udcff is no text in UTF-8, as names are\n"


def test_text_that_nobody_typed_and_that_can_not_be_written_is_a_bug() -> None:
    with pytest.raises(UnicodeEncodeError), CommandEnding():
        "\ud800".encode()


class Refusal:
    """A client library's error."""

    def __init__(self, text: str) -> None:
        self._text = text

    def str(self) -> str:
        return self._text

    def name(self) -> str:
        return "INVALID_CONFIG"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retention.sm", "did you mean retention.ms?"),
        ("foo", "`shmbroker config explain` lists them"),
    ],
)
def test_unknown_setting_of_a_topic_says_what_there_is(name: str, hint: str) -> None:
    said = sentence(Refusal(f"Unknown topic config name: {name}"))
    assert said == f"Unknown topic config name: {name} (INVALID_CONFIG); {hint}"


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("log.retention.hour", "; did you mean log.retention.hours?"),
        ("foo", "; `shmbroker config explain` lists them."),
        ("retention.ms", " but of a topic; for all topics it is called log.retention.ms."),
    ],
)
def test_unknown_setting_of_a_broker_says_what_there_is(name: str, end: str) -> None:
    with pytest.raises(ConfigFault, match=re.escape(f"is no setting of a broker{end}") + "$"):
        BrokerConfig.load(None, [f"{name}=1"])


def test_address_of_another_host_is_not_mended_by_another_port() -> None:
    with pytest.raises(ConfigFault, match="name an address of this host with --host"):
        listen_on("192.0.2.1", 0, 1, "--port")
    with pytest.raises(ConfigFault, match="name an address of this host with --console"):
        listen_on("192.0.2.1", 0, 1, "--console")


def test_data_directory_that_is_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(ConfigFault, match="can't be used: it is no directory; name another"):
            HeldDirectory(BrokerConfig(), path).prepare()


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (errno.EACCES, r"denied: .*/\.supervisor\.lock; run it as the directory's owner, or give"),
        (
            errno.EROFS,
            r"system: .*\.lock; mount it for writing \(ReadWritePaths= in a unit\), or n",
        ),
        (errno.ENOSPC, r"device: .*\.lock; make room, or name another one with --data"),
    ],
)
def test_data_directory_that_is_refused_is_named_with_what_helps(
    refused: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_rest: object) -> int:
        raise OSError(refused, os.strerror(refused), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(ConfigFault, match=said):
            HeldDirectory(BrokerConfig(), tmp_path).prepare()


DENIED = r"can't read .*: Permission denied"


def deny(*_rest: object) -> Any:
    raise PermissionError(errno.EACCES, "Permission denied", "/x")


def test_what_may_not_be_read_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log_files.os, "stat", deny)
        for files in (log_files.files_below("/x"), log_repair.repair("/x", is_applied=True)):
            with pytest.raises(StorageFault, match=DENIED):
                list(files)
    with monkeypatch.context() as patch:
        patch.setattr(log_files.os, "scandir", deny)
        with pytest.raises(StorageFault, match=DENIED):
            list(log_files.files_below(str(tmp_path)))


def test_family_of_another_user_is_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach.Path, "read_text", deny)
    with pytest.raises(attach.NotAllowed, match="look at it as the broker's user"):
        attach.find(str(tmp_path))


def test_identity_that_may_not_be_read_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_read", deny)
    with pytest.raises(ConfigFault, match="run it as the directory's owner") as refusal:
        read_meta_properties(str(tmp_path / "meta.properties"))
    assert "remove" not in str(refusal.value)


def test_identity_that_a_failing_disk_does_not_give_is_not_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "meta.properties")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(checkpoints, "_read", fail)
    with pytest.raises(ConfigFault, match="dmesg") as refusal:
        read_meta_properties(path)
    told = plain(str(refusal.value))
    assert told.startswith(f"can't read {path}: Input/output error; ")
    assert "remove" not in told
    assert plain("can't move /a: [Errno 5] no: '/b'") == "can't move /a: no: '/b'"


def test_directory_and_settings_that_may_not_be_read_say_who_needs_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", deny)
        assert "run it as the directory's owner" in data_directory.find(str(tmp_path)).fault
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", deny)
        with pytest.raises(ConfigFault, match=r"denied; give the right to the user"):
            read_settings("/etc/settings.toml")


def test_writes_of_a_console_that_is_not_there_are_told() -> None:
    writes = ("--console-writes", "shmbroker.console.writes", "true")
    (told,) = BrokerConfig.load(None, [], [writes]).idle_complaints()
    assert "(--console-writes) has no effect here" in told
    shown = ("--console", "shmbroker.console", "127.0.0.1:0")
    assert BrokerConfig.load(None, [], [writes, shown]).idle_complaints() == []
