"""What a start makes of the directories that it finds: a plan, or one sentence with the fix."""

from pathlib import Path

import pytest

from shmbroker.controller.raft.quorum_state import QuorumState
from shmbroker.controller.raft.voter_change import StoredQuorum
from shmbroker.errors import ConfigFault
from shmbroker.log.file_names import META_PROPERTIES
from shmbroker.log.meta_properties import MetaProperties, read_meta_properties
from shmbroker.metadata.topic_names import METADATA_DIRECTORY
from shmbroker.processes.data_directory import (
    DirectoryPlan,
    Found,
    WantedNodes,
    carry_out,
    find,
    find_others,
    judge,
)

NEW = bytes(range(16))
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
OTHER_CLUSTER = "4hCYzxq0T2q4kjsbc5nVdA"


def node(place: int, node_id: int | None, **more: object) -> Found:
    """The directory at a place; without an id it is empty."""
    identity = None if node_id is None else MetaProperties(node_id, CLUSTER, NEW)
    return Found(f"/data/node-{place}", **{"identity": identity, **more})


def standing(tmp_path: Path, voters: list[int]) -> StoredQuorum:
    """Of a controller with these voters."""
    state = QuorumState(str(tmp_path))
    state.voters = voters
    return StoredQuorum(str(tmp_path), state, "")


def judged(
    *found: Found,
    others: dict[int, Found] | None = None,
    node_id: int | None = None,
    controllers: int = 1,
) -> DirectoryPlan:
    wanted = WantedNodes(
        [each.path for each in found],
        1 if node_id is None else node_id,
        node_id is not None,
        controllers,
    )
    return judge(wanted, found, others or {}, lambda: NEW)


def formatted(plan: DirectoryPlan) -> dict[str, tuple[int, str]]:
    return {path: (each.node_id, each.cluster_id) for path, each in plan.to_format.items()}


def test_new_directories_get_ids_in_a_row_and_one_cluster() -> None:
    plan = judged(node(1, None), node(2, None), controllers=1)
    assert plan.is_new
    assert plan.nodes == {1: "/data/node-1", 2: "/data/node-2"}
    assert formatted(plan) == {
        "/data/node-1": (1, plan.cluster_id),
        "/data/node-2": (2, plan.cluster_id),
    }
    assert list(judged(node(0, None), node(1, None), node_id=0).nodes) == [0, 1]


def test_cluster_id_is_that_of_any_node() -> None:
    plan = judged(node(1, None), node(2, 2), node(3, 3))
    assert formatted(plan) == {"/data/node-1": (1, CLUSTER)}
    assert (plan.cluster_id, plan.is_new) == (CLUSTER, False)


def test_different_clusters_are_named() -> None:
    stranger = MetaProperties(2, OTHER_CLUSTER, NEW)
    with pytest.raises(ConfigFault) as fault:
        judged(node(1, 1), node(2, 2, identity=stranger), node(3, 3))
    for part in (CLUSTER, OTHER_CLUSTER, "/data/node-1", "/data/node-2"):
        assert part in str(fault.value)


@pytest.mark.parametrize(
    ("ids", "damaged", "controllers", "goes_on"),
    [
        ([1, 2, 3], [2], 3, True),
        ([1, 2, 3], [1], 3, True),
        ([1, 2, 3], [1, 2], 3, False),
        ([1, 2, 3], [3], 1, True),
        ([1, 2, 3], [1], 1, False),
        ([1], [1], 1, False),
        ([None, None, None], [2], 3, False),  # a new family
    ],
)
def test_directory_that_cannot_be_read_is_done_without_or_not(
    ids: list[int | None], damaged: list[int], controllers: int, goes_on: bool
) -> None:
    found = [
        Found(f"/data/node-{place}", fault="it is damaged")
        if place in damaged
        else node(place, id_)
        for place, id_ in enumerate(ids, 1)
    ]
    if not goes_on:
        with pytest.raises(ConfigFault, match="it is damaged"):
            judged(*found, controllers=controllers)
        return
    plan = judged(*found, controllers=controllers)
    assert plan.to_format == {}, "nothing is written into it"
    assert list(plan.nodes) == [1, 2, 3]


@pytest.mark.parametrize(
    ("node_id", "ids", "expected"),
    [
        (None, [0, 1, 2], [0, 1, 2]),
        (0, [0, 1, 2], [0, 1, 2]),
        (None, [7], [7]),
        (None, [1001, 1002], [1001, 1002]),
        (None, [7, 3, 9], [7, 3, 9]),
        (None, [0, None, 2], [0, 1, 2]),
        (None, [None, 8, 9], [7, 8, 9]),
        (None, [0], [0]),
        (0, [None], [0]),
        (0, [0, None], [0, 1]),
        (1, [0, 1, 2], "--node-id"),
        (0, [0, 2], "--node-id"),
        (None, [7, 3, None], "7, 3"),
        (None, [1, 1], "both of node 1"),
        (None, [None, 0], "--node-id"),
    ],
)
def test_ids_are_those_on_the_disk(
    node_id: int | None, ids: list[int | None], expected: list[int] | str
) -> None:
    found = [node(place, id_) for place, id_ in enumerate(ids, 1)]
    if isinstance(expected, str):
        with pytest.raises(ConfigFault, match=expected):
            judged(*found, node_id=node_id)
        return
    plan = judged(*found, node_id=node_id, controllers=1)
    assert list(plan.nodes) == expected
    assert plan.controllers == expected[:1]


@pytest.mark.parametrize(
    ("node_id", "ids", "others", "says"),
    [
        (None, [1], {2: True, 3: True}, "--io-workers 3"),
        (None, [1, 2], {3: True}, "--io-workers 3"),
        (0, [0], {1: True, 2: True}, "--io-workers 3"),
        (None, [1, 2], {0: True}, "--node-id 0"),
        (None, [1, 2], {0: False}, "--node-id 0"),
        (None, [None], {2: False, 3: False}, "--io-workers 3"),
        (None, [None], {1001: True, 1002: True}, "--node-id 1001"),
        (None, [None, None, None], {5: False}, "--node-id 5"),
        (None, [2, 3, None], {1: True}, "name it with --log-dir"),
        (None, [2, 3, None], {1: True, 4: True}, "--io-workers 4"),
    ],
)
def test_nodes_that_would_not_run_are_missed_with_the_right_number(
    node_id: int | None, ids: list[int | None], others: dict[int, bool], says: str
) -> None:
    """`others`: by number, whether it holds replicas."""
    found = [node(place, id_) for place, id_ in enumerate(ids, 1)]
    left = {number: node(number, number, holds_replicas=has) for number, has in others.items()}
    with pytest.raises(ConfigFault) as fault:
        judged(*found, others=left, node_id=node_id)
    assert says in str(fault.value)


def test_exchanged_identities_are_refused() -> None:
    with pytest.raises(
        ConfigFault, match=r"node-1/meta\.properties is the one that belongs into /"
    ):
        judged(node(1, 2), node(2, 1))
    with pytest.raises(ConfigFault, match="belongs into /data/node-3: put"):
        judged(node(1, 3), node(2, 1), node(3, 2))
    assert list(judged(node(2, 2), node(1, 1)).nodes) == [2, 1]  # as --log-dir says it
    assert list(judged(node(1, 5), node(2, 6)).nodes) == [5, 6]  # as of an earlier Kafka


def test_node_that_is_left_without_replicas_is_none_of_the_family() -> None:
    assert list(judged(node(1, 1), others={2: node(2, 2)}).nodes) == [1]


def test_first_id_that_the_cluster_does_not_know_is_refused(tmp_path: Path) -> None:
    voting = standing(tmp_path, [2, 3, 4])
    found = [node(1, None), node(2, 2, standing=voting), node(3, 3, standing=voting)]
    with pytest.raises(ConfigFault, match="--node-id 2"):
        judged(*found, controllers=3)


def everything(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


def test_only_carrying_out_writes(tmp_path: Path) -> None:
    kept = tmp_path / "node-2"
    kept.mkdir()
    (kept / META_PROPERTIES).write_text(
        f"version=1\nnode.id=2\ncluster.id={CLUSTER}\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n"
    )
    (kept / METADATA_DIRECTORY).mkdir()
    (kept / METADATA_DIRECTORY / "quorum-state").write_text("no JSON")
    before = everything(tmp_path)
    places = [str(tmp_path / f"node-{number}") for number in (1, 2)]
    plan = judge(
        WantedNodes(places, 1, False, 1),
        [find(place) for place in places],
        find_others(str(tmp_path), places),
    )
    assert everything(tmp_path) == before
    carry_out(plan)
    made = read_meta_properties(f"{places[0]}/{META_PROPERTIES}")
    assert made is not None
    assert (made.node_id, made.cluster_id) == (1, CLUSTER)
    aside = tmp_path / "quarantine" / "node-2" / METADATA_DIRECTORY / "quorum-state"
    assert aside.read_text() == "no JSON"


def test_directory_that_cannot_be_made_is_a_fault_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is no directory" in find(str(tmp_path / "file" / "a" / "b")).fault
    assert "can't be read" in find(str(tmp_path / "file")).fault
    assert find(str(tmp_path / "not" / "there")).fault == ""
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert f"leads to {tmp_path}/disk, which is not there: mount" in find(f"{tmp_path}/link").fault
    assert not (tmp_path / "not").exists()
