"""`shmbroker top` of a real family: on a terminal, with keys; the broker ends and comes back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich")

from shmbroker.cli.top.terminal import BEGIN_FRAME, END_FRAME, ENTER_SCREEN, LEAVE_SCREEN
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.raw_client import RawClient

TOPIC = "watched"
COMMAND = (sys.executable, "-m", "shmbroker", "top")
CTRL_C = "\x03"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker("--network-workers", "1", data=tmp_path) as made:
        with RawClient(made.address) as client:
            client.create_topic(TOPIC, 3)
            assert client.produce(TOPIC, batch_now(b"value"))["error_code"] == 0
        yield made


def on_terminal(*words: str) -> PseudoTerminal:
    return PseudoTerminal((*COMMAND, *words), BEGIN_FRAME, END_FRAME, 80, 24)


def has(*texts: str):
    return lambda frame: all(any(text in line for line in frame) for text in texts)


def test_keys_switch_views_and_the_terminal_is_given_back(broker: Broker, tmp_path: Path) -> None:
    terminal = on_terminal("--data", str(tmp_path), "--interval", "0.25")
    try:
        before = terminal.attributes()
        frame = terminal.wait(has("io-worker-1", "supervisor", "ready"), "the processes")
        assert len(frame) <= 24 and max(map(len, frame)) <= 80
        assert terminal.text.startswith(ENTER_SCREEN)
        terminal.press("3")
        terminal.wait(has("TOPIC ", TOPIC), "the topics")
        terminal.press("\t/" + TOPIC + "-2\r")
        terminal.wait(has("PARTITION ", f"{TOPIC}-2", "1-1 of 1"), "one partition")
        terminal.press("\x1b")
        terminal.press(" ")
        terminal.wait(has("of 3, paused"), "the pause")
        terminal.resize(50, 9)
        frame = terminal.wait(lambda lines: max(map(len, lines)) <= 50, "a narrow frame")
        assert len(frame) <= 9
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.text.endswith(LEAVE_SCREEN)
        assert terminal.attributes() == before
    finally:
        terminal.close()


def test_broker_that_ends_is_waited_for(broker: Broker, tmp_path: Path) -> None:
    terminal = on_terminal("--data", str(tmp_path), "--interval", "0.25")
    try:
        terminal.wait(has("io-worker-1", "ready"), "the processes")
        assert broker.stop() == 0
        terminal.wait(has("the broker has ended; waiting for another one on"), "the end")
        with Broker("--network-workers", "1", data=tmp_path) as again:
            terminal.wait(has("ready", str(again.pid)), "the next one")
            terminal.press(CTRL_C)
            assert terminal.ended() == 0
            assert terminal.text.endswith(LEAVE_SCREEN)
    finally:
        terminal.close()


def test_one_look_is_text_or_json(broker: Broker, tmp_path: Path) -> None:
    words = (*COMMAND, "--data", str(tmp_path), "--once", "--interval", "0.2")
    shown = subprocess.run(
        (*words, "--view", "topics"), capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "\x1b" not in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith(TOPIC))
    assert row[1] == "3"
    ran = subprocess.run((*words, "--json"), capture_output=True, text=True, timeout=60, check=True)
    read = json.loads(ran.stdout)
    titles = [process["title"] for process in read["snapshot"]["processes"]]
    assert {"supervisor", "io-worker-1", "network-worker-1", "controller-1"} <= set(titles)
    assert read["rates"]["interval_s"] >= 0.2
