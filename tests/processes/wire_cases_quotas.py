"""Wire cases of client quotas (KIP-546): what may be set for whom, and how filters find it.

Rules as in `wire_cases`. Entities bear the run's prefix, or are taken away again.
"""

from typing import Any

from tests.processes.wire_cases import Answers, scenario, versions
from tests.processes.wire_side import Side

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
TRIES = 500

Entity = list[tuple[str, str | None]]


def alter(
    side: Side, version: int, *entries: tuple[Entity, dict[str, float | None]], **more: bool
) -> Any:
    """AlterClientQuotas; a value of None takes the quota away."""
    rows = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [
                {"key": key, "value": value or 0.0, "remove": value is None}
                for key, value in ops.items()
            ],
        }
        for entity, ops in entries
    ]
    body = {"entries": rows, "validate_only": False} | more
    answer = side.ask("AlterClientQuotas", version, body)
    for entry in answer.get("entries", ()):
        entry.get("entity", []).sort(key=str)
    answer.get("entries", []).sort(key=str)
    return answer


def describe(
    side: Side, version: int, *components: tuple[str, int, str | None], is_strict: bool = False
) -> Any:
    """DescribeClientQuotas, entities and values in order."""
    rows = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]
    answer = side.ask("DescribeClientQuotas", version, {"components": rows, "strict": is_strict})
    for entry in answer.get("entries") or ():
        entry["entity"].sort(key=str)
        entry.get("values", []).sort(key=str)
    (answer.get("entries") or []).sort(key=str)
    return answer


def _has(side: Side, entity: Entity, count: int) -> None:
    """Wait until the broker knows so many quotas of an entity."""
    components = [(kind, DEFAULT if name is None else EXACT, name) for kind, name in entity]
    for _ in range(TRIES):
        entries = describe(side, 1, *components, is_strict=True).get("entries") or [{}]
        if len(entries[0].get("values", ())) == count:
            return


@scenario
def client_quotas(side: Side) -> Answers:
    """Set, found by filters, and taken away; refused in Kafka's words."""
    user, client, other = side.name("user"), side.name("client"), side.name("other")
    pair: Entity = [("user", user), ("client-id", client)]
    for version in versions("AlterClientQuotas"):
        yield (
            "set",
            version,
            alter(
                side,
                version,
                ([("user", user)], {"producer_byte_rate": 1024.0, "request_percentage": 0.5}),
                (pair, {"consumer_byte_rate": 2048.0, "controller_mutation_rate": 1.5}),
                ([("user", user), ("client-id", None)], {"producer_byte_rate": 512.0}),
                ([("client-id", other)], {"consumer_byte_rate": 4.0}),
                ([("ip", "198.51.100.9")], {"connection_creation_rate": 3.0}),
            ),
        )
        _has(side, [("ip", "198.51.100.9")], 1)
        for word, components in (
            ("user", [("user", EXACT, user)]),
            ("pair", [("user", EXACT, user), ("client-id", EXACT, client)]),
            ("default client", [("user", EXACT, user), ("client-id", DEFAULT, None)]),
            ("any client", [("user", EXACT, user), ("client-id", SPECIFIED, None)]),
            ("client", [("client-id", EXACT, other)]),
            ("ip", [("ip", EXACT, "198.51.100.9")]),
            ("nobody", [("user", EXACT, side.name("nobody"))]),
            ("empty name", [("user", EXACT, "")]),
        ):
            for is_strict in (False, True):
                yield (
                    f"find {word}{', strictly' if is_strict else ''}",
                    version,
                    describe(side, version, *components, is_strict=is_strict),
                )
        for word, components in (
            ("unknown type", [("group", EXACT, "x")]),
            ("empty type", [("", EXACT, "x")]),
            ("type twice", [("user", EXACT, "x"), ("user", DEFAULT, None)]),
            ("exact of null", [("user", EXACT, None)]),
            ("default with a name", [("user", DEFAULT, "x")]),
            ("specified with a name", [("user", SPECIFIED, "x")]),
            ("unknown match", [("user", 3, "x")]),
            ("negative match", [("user", -1, None)]),
            ("ip and user", [("ip", EXACT, "198.51.100.9"), ("user", EXACT, "x")]),
            ("ip and client", [("ip", SPECIFIED, None), ("client-id", SPECIFIED, None)]),
        ):
            yield f"find {word}", version, describe(side, version, *components)
        yield (
            "trial",
            version,
            alter(
                side,
                version,
                ([("user", user)], {"producer_byte_rate": 7.0}),
                ([("user", user), ("client-id", None)], {"producer_byte_rate": None}),
                validate_only=True,
            ),
        )
        yield "trial: after", version, describe(side, version, ("user", EXACT, user))
        for word, entity, ops in (
            ("no entity", [], {"producer_byte_rate": 1.0}),
            ("unknown type", [("group", "x")], {"producer_byte_rate": 1.0}),
            ("empty type", [("", "x")], {"producer_byte_rate": 1.0}),
            ("empty name", [("user", "")], {"producer_byte_rate": 1.0}),
            ("empty client", [("client-id", "")], {"producer_byte_rate": 1.0}),
            ("ip and user", [("ip", "198.51.100.9"), ("user", user)],
             {"connection_creation_rate": 1.0}),
            ("ip and client", [("ip", None), ("client-id", other)], {"producer_byte_rate": 1.0}),
            ("no ip", [("ip", "198.51.100.999")], {"connection_creation_rate": 1.0}),
            ("empty ip", [("ip", "")], {"connection_creation_rate": 1.0}),
            ("ip with a byte rate", [("ip", "198.51.100.8")], {"producer_byte_rate": 1.0}),
            ("user with connections", [("user", user)], {"connection_creation_rate": 1.0}),
            ("client with connections", [("client-id", other)], {"connection_creation_rate": 1.0}),
            ("unknown key", [("user", user)], {"no_such_rate": 1.0}),
            ("empty key", [("user", user)], {"": 1.0}),
            ("remove unknown key", [("user", user)], {"no_such_rate": None}),
            ("remove what is not there", [("user", other)], {"producer_byte_rate": None}),
            ("zero", [("user", user)], {"producer_byte_rate": 0.0}),
            ("negative", [("user", user)], {"producer_byte_rate": -1.0}),
            ("fraction of a byte", [("user", user)], {"producer_byte_rate": 1.5}),
            ("nearly a byte", [("user", other)], {"producer_byte_rate": 1.0000001}),
            ("fraction of a connection", [("ip", "198.51.100.9")],
             {"connection_creation_rate": 1.5}),
            ("many connections", [("ip", "198.51.100.9")], {"connection_creation_rate": 3e9}),
            ("very many bytes", [("user", user)], {"producer_byte_rate": 1e30}),
            ("infinite bytes", [("user", user)], {"producer_byte_rate": float("inf")}),
            ("infinite percentage", [("user", other)], {"request_percentage": float("inf")}),
            ("no number of bytes", [("user", other)], {"producer_byte_rate": float("nan")}),
            ("host name", [("ip", "localhost")], {"connection_creation_rate": 3.0}),
            ("no number", [("user", user)], {"request_percentage": float("nan")}),
            ("small percentage", [("user", other)], {"request_percentage": 1e-9}),
            ("no operation", [("user", user)], {}),
            ("scram", [("user", user)], {"SCRAM-SHA-256": 1.0}),
        ):  # fmt: skip
            yield f"set {word}", version, alter(side, version, (entity, ops), validate_only=True)
        yield (
            "set good and bad",
            version,
            alter(
                side,
                version,
                ([("user", other)], {"producer_byte_rate": 9.0, "no_such_rate": 1.0}),
                ([("client-id", client)], {"producer_byte_rate": 9.0}),
                validate_only=True,
            ),
        )
        twice = {"key": "producer_byte_rate", "value": 5.0}
        body = {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": other}],
                    "ops": [twice, twice | {"value": 6.0}],
                }
            ],
            "validate_only": True,
        }
        yield "set one key twice", version, side.ask("AlterClientQuotas", version, body)
        yield (
            "set one entity twice",
            version,
            alter(
                side,
                version,
                ([("user", other)], {"producer_byte_rate": 9.0}),
                ([("user", other)], {"consumer_byte_rate": 9.0}),
                validate_only=True,
            ),
        )
        yield (
            "set one type twice",
            version,
            alter(side, version, ([("user", other), ("user", user)], {"producer_byte_rate": 9.0}),
                  validate_only=True),
        )  # fmt: skip
        yield "set nothing", version, alter(side, version)
        yield (
            "remove",
            version,
            alter(
                side,
                version,
                ([("user", user)], {"producer_byte_rate": None, "request_percentage": None}),
                (pair, {"consumer_byte_rate": None, "controller_mutation_rate": None}),
                ([("user", user), ("client-id", None)], {"producer_byte_rate": None}),
                ([("client-id", other)], {"consumer_byte_rate": None}),
                ([("ip", "198.51.100.9")], {"connection_creation_rate": None}),
            ),
        )
        _has(side, [("ip", "198.51.100.9")], 0)
        yield "remove: after", version, describe(side, version, ("user", EXACT, user))
