"""UpdateFeatures in order and what Apache Kafka 4.2.1 (node 1) answers; nothing of it changes
anything, so that a Kafka may be asked who has other guests."""

from typing import Any

Case = tuple[tuple[tuple[str, int, int], ...], str | None]

_ALL = "The update failed for all features since the following feature had an error: "
_TYPE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe "
    "or unsafe downgrade."
)
_SUPPORTS = "Local controller 1 only supports versions"


def _invalid(name: str, level: int, reason: str) -> str:
    return f"{_ALL}Invalid update version {level} for feature {name}. {reason}"


CASES: list[Case] = [
    # updates of (feature, level, upgrade type); what is wrong with them
    ((), None),
    ((("group.version", 1, 1),), None),
    ((("group.version", 0, 1),), _invalid("group.version", 0, _TYPE)),
    ((("group.version", 0, 2),), None),
    ((("group.version", 0, 3),), None),
    ((("group.version", 1, 2),), None),
    ((("group.version", 2, 1),), _invalid("group.version", 2, f"{_SUPPORTS} 0-1")),
    (
        (("group.version", -1, 1),),
        _invalid("group.version", -1, "A feature version cannot be less than 0."),
    ),
    *(
        (
            (("group.version", 0, kind),),
            _invalid("group.version", 0, "The controller does not support the given upgrade type."),
        )
        for kind in (0, 4, -1)
    ),
    (
        (("nonsense", 1, 1),),
        _invalid("nonsense", 1, "Local controller 1 does not support this feature."),
    ),
    ((("nonsense", 0, 2),), _invalid("nonsense", 0, "Feature nonsense not found.")),
    (
        (("group.version", 1, 1), ("nonsense", 1, 1)),
        _invalid("nonsense", 1, "Local controller 1 does not support this feature."),
    ),
    ((("share.version", 1, 1), ("streams.version", 1, 1)), None),
    ((("share.version", 0, 2),), None),
    ((("share.version", 2, 1),), _invalid("share.version", 2, f"{_SUPPORTS} 0-1")),
    ((("kraft.version", 1, 1),), None),
    ((("kraft.version", 0, 2),), None),
    ((("kraft.version", 2, 1),), _invalid("kraft.version", 2, f"{_SUPPORTS} 0-1")),
    ((("metadata.version", 30, 1),), _invalid("metadata.version", 30, f"{_SUPPORTS} 7-29")),
    ((("metadata.version", 6, 2),), _invalid("metadata.version", 6, f"{_SUPPORTS} 7-29")),
    ((("metadata.version", 0, 2),), _invalid("metadata.version", 0, f"{_SUPPORTS} 7-29")),
    ((("metadata.version", 29, 1),), None),
    ((("metadata.version", 28, 1),), _invalid("metadata.version", 28, _TYPE)),
    ((("metadata.version", 28, 2),), None),
    ((("metadata.version", 23, 2),), None),
    (
        (("metadata.version", 22, 2),),
        f"{_ALL}Unsupported metadata.version downgrade from 29 to 22. Refusing to perform the "
        "requested downgrade because it might delete metadata information.",
    ),
    (
        (("metadata.version", 7, 3),),
        f"{_ALL}Unsupported metadata.version downgrade from 29 to 7. Unsafe metadata downgrade is "
        "not supported in this version.",
    ),
]


def request_of(updates: tuple[tuple[str, int, int], ...], *, is_trial: bool) -> dict[str, Any]:
    """An UpdateFeatures request from version 1 on."""
    return {
        "timeout_ms": 10_000,
        "feature_updates": [
            {"feature": name, "max_version_level": level, "upgrade_type": kind}
            for name, level, kind in updates
        ],
        "validate_only": is_trial,
    }
