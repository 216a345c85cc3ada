"""Regions: allocated, nameless, inherited, refused when there is no room."""

import errno
import os
import socket

import posix_ipc
import pytest

from shmbroker.errors import ConfigFault
from shmbroker.shm import region as region_module
from shmbroker.shm.region import SHM_DIRECTORY, Region, require_room, sweep
from tests.support.descriptors import open_below

PREFIX = f"shmbroker-test-{os.getpid()}-"


def test_create_leaves_no_name_and_allocates_every_page():
    region = Region.create(PREFIX + "a", 3 * 4096)
    assert not [name for name in os.listdir(SHM_DIRECTORY) if name.startswith(PREFIX)]
    status = os.fstat(region.fd)
    assert status.st_blocks * 512 == 3 * 4096
    assert status.st_mode & 0o777 == 0o600
    assert bytes(region.view) == bytes(3 * 4096)
    region.close()


def test_stores_of_a_forked_child_are_seen():
    region = Region.create(PREFIX + "b", 4096)
    child = os.fork()
    if child == 0:
        region.view[100] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert region.view[100] == 7
    region.close()


def test_attach_by_a_descriptor_passed_over_a_socket_maps_the_same_bytes():
    region = Region.create(PREFIX + "c", 4096)
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"x"], [region.fd])
        _, (fd,), _, _ = socket.recv_fds(there, 1, 1)
    other = Region.attach(fd, 4096)
    region.view[5] = 9
    assert other.view[5] == 9
    other.close()
    region.close()


def test_attach_with_more_bytes_than_there_are_is_refused():
    region = Region.create(PREFIX + "d", 4096)
    with pytest.raises(ConfigFault, match="less than 8192"):
        Region.attach(region.fd, 8192)
    region.close()


def test_a_region_larger_than_the_file_system_is_refused_with_the_fix():
    with pytest.raises(ConfigFault, match=r"/dev/shm has .* MiB free .*--shm-size"):
        Region.create(PREFIX + "e", 1 << 50)
    assert open_below(f"{SHM_DIRECTORY}/{PREFIX}e") == []
    assert not [name for name in os.listdir(SHM_DIRECTORY) if name.startswith(PREFIX)]


def test_a_name_left_by_a_killed_process_is_refused_until_it_is_swept():
    left = os.path.join(SHM_DIRECTORY, PREFIX + "f")
    with open(left, "wb"):
        pass
    with pytest.raises(FileExistsError):
        Region.create(PREFIX + "f", 4096)
    assert sweep(PREFIX) == [PREFIX + "f"]
    assert sweep(PREFIX) == []
    Region.create(PREFIX + "f", 4096).close()


def test_close_refuses_while_a_view_is_in_use():
    region = Region.create(PREFIX + "g", 4096)
    part = region.view[10:20]
    with pytest.raises(BufferError):
        region.close()
    part.release()
    region.close()


def test_room_for_all_regions_is_asked_for_before_the_first():
    with pytest.raises(ConfigFault, match=r"and 1048576 MiB of shared memory are needed"):
        require_room(1 << 40)
    require_room(4096)


@pytest.mark.parametrize("call", [lambda: sweep(PREFIX), lambda: require_room(4096)])
def test_missing_directory_is_told_with_the_fix(monkeypatch, call):
    monkeypatch.setattr(region_module, "SHM_DIRECTORY", "/dev/nowhere")
    with pytest.raises(ConfigFault, match=r"No such file.*must be a tmpfs"):
        call()


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOENT, errno.EMFILE])
def test_directory_that_takes_nothing_is_told_with_the_fix(monkeypatch, code):
    def refuse(*_arguments, **_more):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(posix_ipc, "SharedMemory", refuse)
    with pytest.raises(ConfigFault, match=os.strerror(code)):
        Region.create(PREFIX + "f", 4096)


@pytest.mark.parametrize(
    ("name", "code", "fix"),
    [
        ("posix_fallocate", errno.EFBIG, "ulimit -f unlimited"),
        ("posix_fallocate", errno.ENOMEM, "ulimit -v unlimited"),
    ],
)
def test_limit_that_is_too_small_is_told_with_the_fix(monkeypatch, name, code, fix):
    def refuse(*_arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(ConfigFault, match=f"3 MiB of shared memory.*{fix}"):
        Region.create(PREFIX + "g", (2 << 20) + 1)
