"""`meta.properties`: which node of which cluster a log directory belongs to (version 1, KRaft).

#                                      comments, as java.util.Properties writes them
node.id=1
directory.id=ryUiUl060_517e4KOko6-w
version=1
cluster.id=MkU3OEVBNTcwNTJENDM2Qg
"""

import errno
import os

from shmbroker.errors import ConfigFault, StorageFault
from shmbroker.ids import uuid_from_text, uuid_text
from shmbroker.log.checkpoints import read_file, write_file
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.settings.java_properties import properties
from shmbroker.settings.setting import INT_MAX

_FIX = "restore the file from a copy, or remove it to give the node a new identity"

_FIX_DISK = "the kernel's log (dmesg) tells more: mend or replace the disk, and start again"
_DISK_FAILS = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE)

FIX_RIGHTS = "run it as the directory's owner, or give it the rights"


def refuse_inside(path: str) -> None:
    """ConfigFault if a directory that is for something else is a node's log directory, or lies in
    one: it goes with the partition that it is in, and Apache Kafka would not start beside it."""
    outer = os.path.realpath(path)
    while not os.path.lexists(f"{outer}/{META_PROPERTIES}"):
        if outer == (outer := os.path.dirname(outer)):
            return
    raise ConfigFault(f"{path} is inside the log directory {outer} of a node: name another one")


class MetaProperties:
    """node_id (int), cluster_id (text), directory_id (16 bytes)."""

    __slots__ = ("cluster_id", "directory_id", "node_id")

    def __init__(self, node_id: int, cluster_id: str, directory_id: bytes) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.directory_id = directory_id


def require_meta_properties(node_directory: str, node_id: int, cluster_id: str) -> None:
    """ConfigFault if a node's directory is not that of this node of this cluster, or not there:
    only a start of the whole family makes it."""
    path = f"{node_directory}/{META_PROPERTIES}"
    found = read_meta_properties(path)
    if found is None:
        raise ConfigFault(
            f"{path} is missing: put the directory back, or start the family again, which makes a "
            "new one."
        )
    check_meta_properties(path, found, node_id, cluster_id)


def check_meta_properties(path: str, found: MetaProperties, node_id: int, cluster_id: str) -> None:
    """ConfigFault if these are another node's or another cluster's."""
    if found.node_id != node_id:
        raise ConfigFault(f"{path} belongs to node {found.node_id}, this is node {node_id}")
    if found.cluster_id != cluster_id:
        raise ConfigFault(f"{path} belongs to cluster {found.cluster_id}, not {cluster_id}")


def write_meta_properties(path: str, identity: MetaProperties) -> None:
    """Write the file durably."""
    text = (
        f"#\nnode.id={identity.node_id}\ndirectory.id={uuid_text(identity.directory_id)}\n"
        f"version=1\ncluster.id={identity.cluster_id}\n"
    )
    write_file(path, text)


def read_meta_properties(path: str) -> MetaProperties | None:
    """None if there is no file; ConfigFault if it is not a version 1 file with all ids."""
    try:
        text = read_file(path)
    except StorageFault as fault:
        raise ConfigFault(f"{fault}; {_fix_of(fault.__cause__)}") from None
    if text is None:
        return None
    try:
        values = properties(text)
        if values["version"] != "1":
            raise ConfigFault(f"{path}: version {values['version']} is not 1 (KRaft)")
        return MetaProperties(
            _node_id(values["node.id"]),
            _cluster_id(values["cluster.id"]),
            uuid_from_text(values["directory.id"]),
        )
    except KeyError as missing:
        raise ConfigFault(f"{path}: {missing.args[0]} is missing; {_FIX}") from None
    except ValueError as error:
        raise ConfigFault(f"{path}: {error}; {_FIX}") from None


def _fix_of(refusal: BaseException | None) -> str:
    """What to do where the file can't be read. One that a failing disk does not give is not to be
    removed: it may be whole."""
    if isinstance(refusal, PermissionError):
        return FIX_RIGHTS
    if isinstance(refusal, OSError) and refusal.errno in _DISK_FAILS:
        return _FIX_DISK
    return _FIX


def _node_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > INT_MAX:
        raise ValueError(f"node.id {text!r} is not a number from 0 to {INT_MAX}")
    return int(text)


def _cluster_id(text: str) -> str:
    if not text:
        raise ValueError("cluster.id is empty")
    return text
