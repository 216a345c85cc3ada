"""UpdateFeatures: codes, words, and what becomes of the levels."""

import pytest
from controller_at_work import NOW_MS, Start
from feature_cases import CASES, Case, request_of

from shmbroker.controller.active_controller import ActiveController
from shmbroker.wire import codec


def update(
    controller: ActiveController,
    *updates: tuple[str, int, int],
    version: int = 2,
    is_trial: bool = False,
) -> dict:
    request = request_of(updates, is_trial=is_trial)
    if version == 0:
        del request["validate_only"]
        for each in request["feature_updates"]:
            each["allow_downgrade"] = each.pop("upgrade_type") > 1
    # through the codec, as requests come and responses go
    body = codec.encode("UpdateFeaturesRequest", version, request)
    request = codec.decode_all("UpdateFeaturesRequest", version, body)
    response = controller.handle("UpdateFeatures", version, request, NOW_MS)
    body = codec.encode("UpdateFeaturesResponse", version, response)
    return codec.decode_all("UpdateFeaturesResponse", version, body)


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("version", [1, 2])
def test_answers_are_kafkas(controller: ActiveController, case: Case, version: int) -> None:
    updates, message = case
    before = controller.committed_offset
    response = update(controller, *updates, version=version, is_trial=True)
    assert (response["error_code"], response["error_message"]) == (95 if message else 0, message)
    assert controller.committed_offset == before
    named = [] if message or version == 2 else [name for name, _, _ in updates]
    assert [result["feature"] for result in response["results"]] == named


def test_level_goes_down_and_up_and_outlives_a_restart(start: Start) -> None:
    controller = start()
    assert controller.image.features["group.version"] == 1
    assert update(controller, ("group.version", 0, 2))["error_code"] == 0
    assert "group.version" not in controller.image.features
    assert update(controller, ("group.version", 0, 2))["error_code"] == 0
    assert update(controller, ("group.version", 1, 2))["error_code"] == 95
    controller.close()
    controller = start()
    assert "group.version" not in controller.image.features
    assert update(controller, ("group.version", 1, 1))["error_code"] == 0
    assert controller.image.features["group.version"] == 1


def test_metadata_version_goes_down_and_up(controller: ActiveController) -> None:
    assert update(controller, ("metadata.version", 25, 2))["error_code"] == 0
    assert controller.image.features["metadata.version"] == 25
    assert update(controller, ("metadata.version", 22, 2))["error_code"] == 95
    assert update(controller, ("metadata.version", 29, 1))["error_code"] == 0
    assert controller.image.features["metadata.version"] == 29


def test_one_bad_update_leaves_all_as_it_is(controller: ActiveController) -> None:
    before = controller.committed_offset
    response = update(controller, ("group.version", 0, 2), ("nonsense", 1, 1))
    assert response["error_code"] == 95
    assert controller.committed_offset == before


def test_version_0_never_goes_down(controller: ActiveController) -> None:
    response = update(controller, ("group.version", 0, 2), version=0)
    assert response["error_code"] == 95
    response = update(controller, ("group.version", 1, 2), version=0)
    assert [result["error_message"] for result in response["results"]] == ["NONE"]


def test_level_of_a_feature_that_is_not_served_goes_down_and_up(
    controller: ActiveController,
) -> None:
    for level, kind in ((0, 2), (1, 1)):
        assert update(controller, ("streams.version", level, kind))["error_code"] == 0
        assert controller.image.features.get("streams.version", 0) == level


def test_all_levels_of_a_release_may_be_asked_for(controller: ActiveController) -> None:
    """`kafka-features upgrade --release-version 4.2`, and the way back to 4.1 and up again."""
    of_both = {
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "kraft.version": 1,
        "transaction.version": 2,
    }
    newer = {"metadata.version": 29, "share.version": 1, "streams.version": 1}
    older = {"metadata.version": 27, "share.version": 0, "streams.version": 0}
    before = dict(controller.image.features)
    for levels, kind in ((newer, 1), (older, 2), (newer, 1)):
        response = update(controller, *((*each, kind) for each in (of_both | levels).items()))
        assert response["error_code"] == 0
        for name, level in levels.items():
            assert controller.image.features.get(name, 0) == level
    assert controller.image.features == before, "the voters are not in the log"


def test_transaction_version_goes_up_and_down(controller: ActiveController) -> None:
    for level, kind in ((0, 2), (1, 1), (2, 1), (1, 2)):
        assert update(controller, ("transaction.version", level, kind))["error_code"] == 0
        assert controller.image.features.get("transaction.version", 0) == level
    assert update(controller, ("transaction.version", 3, 1))["error_code"] == 95
