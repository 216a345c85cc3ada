"""Each kind of file that the disk refuses to write, with ENOSPC and with EIO: nobody dies, what is
derived is done without, records are refused with KAFKA_STORAGE_ERROR and taken again by itself."""

import errno
import os
import re
from pathlib import Path

import pytest

from shmbroker.processes.supervisor import EXIT_CHILD_BOOT
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, read_some
from tests.support.preloaded import preload
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

STORAGE_ERROR = 56
NOT_CONTROLLER = 41
FAILING_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* the errno that $FAIL_WHERE, "<errno> <piece of a path>", has for this path; 0: none */
static int fault_of(const char *path) {
    char line[256] = "", *wanted;
    int trigger = (int)syscall(257, AT_FDCWD, getenv("FAIL_WHERE"), O_RDONLY);
    if (trigger < 0) return 0;
    ssize_t size = read(trigger, line, sizeof line - 1);
    close(trigger);
    if (size <= 0 || !(wanted = strchr(line, ' '))) return 0;
    return strstr(path, wanted + 1) ? atoi(line) : 0;
}

static int fault_of_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return fault_of(path);
}

#define REAL(name) dlsym(RTLD_NEXT, name)
#define REFUSE(what) do { int e = what; if (e) { errno = e; return -1; } } while (0)

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REFUSE(fault_of_fd(fd));
    return ((ssize_t (*)(int, const void *, size_t, off64_t))REAL("pwrite64"))(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    REFUSE(fault_of_fd(fd));
    return ((ssize_t (*)(int, const void *, size_t))REAL("write"))(fd, data, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    int e = fault_of_fd(fd);
    return e ? e : ((int (*)(int, off64_t, off64_t))REAL("posix_fallocate64"))(fd, at, size);
}
int ftruncate64(int fd, off64_t size) {
    if (size) REFUSE(fault_of_fd(fd));
    return ((int (*)(int, off64_t))REAL("ftruncate64"))(fd, size);
}
int truncate64(const char *path, off64_t size) {
    REFUSE(fault_of(path));
    return ((int (*)(const char *, off64_t))REAL("truncate64"))(path, size);
}
int rename(const char *from, const char *to) {
    REFUSE(fault_of(to));
    return ((int (*)(const char *, const char *))REAL("rename"))(from, to);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    if (flags & O_CREAT) REFUSE(fault_of(path));
    return ((int (*)(const char *, int, ...))REAL("open64"))(path, flags, mode);
}
"""
FAILING_FLUSHES = r"""
int fdatasync(int fd) {
    REFUSE(fault_of_fd(fd));
    return ((int (*)(int))REAL("fdatasync"))(fd);
}
"""
DERIVED = (".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint")


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write "<errno> <piece of a path>" into this file, and nothing can be written there."""
    return preload(FAILING_WRITES, tmp_path, monkeypatch)


def test_each_file_that_cannot_be_written(failing: Path) -> None:
    settings = {"segment_bytes": str(1 << 20), "index_interval_bytes": "10"}
    padding = bytes(90_000)
    written: dict[str, int] = {}

    def produce(client: RawClient, topic: str) -> int:
        """The error code; the numbers that are in the log count up."""
        number = written.setdefault(topic, 0)
        error = client.produce(topic, batch_now(b"%d " % number + padding))["error_code"]
        written[topic] += not error
        return error

    with Broker("--set", "shmbroker.disk.reserve.bytes=0") as broker:
        children = broker.children()
        with RawClient(broker.address) as client:
            client.create_topic("whole")
            noted = broker.data / "node-1" / "log-start-offset-checkpoint"
            for code in (errno.ENOSPC, errno.EIO):
                for number, kind in enumerate(DERIVED):
                    topic = f"derived-{code}-{number}"
                    client.create_topic(topic, 1, **settings)
                    failing.write_text(f"{code} {kind}")
                    for _ in range(25):  # over two rolls
                        error = produce(client, topic)
                        # A roll needs the files of the indexes.
                        assert not error or (error == STORAGE_ERROR and "index" in kind)
                    assert produce(client, "whole") == 0
                    failing.unlink()
                    assert produce(client, topic) == 0
                topic = f"log-{code}"
                client.create_topic(topic, 1, **settings)
                assert produce(client, topic) == 0
                failing.write_text(f"{code} {topic}-0/")
                wait_until(lambda topic=topic: produce(client, topic) == STORAGE_ERROR, "a refusal")
                for _ in range(3):
                    assert produce(client, topic) == STORAGE_ERROR
                assert produce(client, "whole") == 0
                failing.unlink()
                for _ in range(25):
                    assert produce(client, topic) == 0
                # A log start that can't be noted is so in memory, and comes round again.
                failing.write_text(f"{code} log-start-offset-checkpoint")
                body = {
                    "topics": [
                        {"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}
                    ],
                    "timeout_ms": 10_000,
                }
                answer = client.ask("DeleteRecords", 2, body)["topics"][0]["partitions"][0]
                assert (answer["error_code"], answer["low_watermark"]) == (0, 1)
                wait_until(lambda: "log-start-offset-checkpoint" in broker.log, "a line")
                assert produce(client, topic) == 0
                failing.unlink()
                line = f"{topic} 0 1"
                wait_until(lambda line=line: noted.exists() and line in noted.read_text(), line)
        assert broker.children() == children, "a process ended"
        assert "Traceback" not in broker.log
        for stop in (broker.kill, broker.stop):
            stop()
            broker.start()
            with RawClient(broker.address) as client:
                for topic, count in written.items():
                    first = int(topic.startswith("log-"))
                    values, _ = read_some(client, topic, 0, first)
                    numbers = [int(value.partition(b" ")[0]) for value in values]
                    assert numbers == list(range(first, count)), topic


@pytest.fixture
def flushing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, and nothing can be flushed there."""
    return preload(FAILING_WRITES + FAILING_FLUSHES, tmp_path, monkeypatch)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_sole_controller_whose_disk_fails_ends_the_family_with_one_sentence(
    flushing: Path, code: int
) -> None:
    """It names the process, the place and the cause; a start on the mended disk has everything."""
    with Broker("--set", "shmbroker.disk.reserve.bytes=0") as broker:
        with RawClient(broker.address) as client:
            client.create_topic("kept")
            assert client.produce("kept", batch_now(b"0"))["error_code"] == 0
            flushing.write_text(f"{code} node-1/__cluster_metadata-0/")
            assert client.produce("kept", batch_now(b"1"))["error_code"] == 0
            body = {
                "topics": [
                    {"name": "refused", "num_partitions": 1, "replication_factor": 1}
                    | {"assignments": [], "configs": []}
                ],
                "timeout_ms": 10_000,
                "validate_only": False,
            }
            (row,) = client.ask("CreateTopics", 5, body)["topics"]
            assert row["error_code"] == NOT_CONTROLLER
        assert broker.process.wait(20) == EXIT_CHILD_BOOT
        (line,) = (line for line in broker.log.splitlines() if "the family stops" in line)
        words = f"as controller-1 can't boot: .*{broker.data}/node-1.*: {os.strerror(code)}$"
        assert re.search(words, line), line
        assert line.count(str(broker.data)) == 1
        assert "Traceback" not in broker.log
        flushing.unlink()
        broker.start()
        with RawClient(broker.address) as client:
            assert read_some(client, "kept", 0, 0)[0] == [b"0", b"1"]
            client.create_topic("later")
