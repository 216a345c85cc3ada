"""Client quotas: which one holds for whom, and what a filter finds (KIP-13, KIP-546, KIP-612).

For a user and a client id the first of these that has the key is the one that holds:

    1  user, client id       2  user, default client       3  user
    4  default user, client id   5  default user, default client   6  default user
    7  client id             8  default client

Under 1, 2, 4 and 5 each pair of user and client id is counted by itself; under 3 and 6 all that a
user does is counted together; under 7 and 8 all that a client id does, whoever the user is.
Source: Kafka's DefaultQuotaCallback, ClientQuotasImage.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.metadata.quota_image import CLIENT_ID, IP, USER
from shmbroker.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.metadata.quota_image import Entity, Quotas

EXACT = 0
DEFAULT = 1
SPECIFIED = 2
"""How a component of a filter matches the name of an entity."""


class Held(NamedTuple):
    """A quota that holds: whose uses are counted together, and how much they may be."""

    user: str
    """ "": of whatever user."""
    client_id: str
    bound: float
    """The bound for each second; of the request percentage: per cent of one process's time."""


def quota_of(quotas: Quotas, key: str, user: str, client_id: str) -> Held | None:
    """The quota of a key that holds for a client; None: it has none."""
    user_names = (user, None) if user else (None,)
    for name in user_names:
        # Kafka looks for pairs, but counts by the user alone, where there is no client id.
        for client_name in (client_id, None) if client_id else ():
            entity: Entity = ((CLIENT_ID, client_name), (USER, name))
            if (bound := quotas.get(entity, _NONE).get(key)) is not None:
                return Held(user, client_id, bound)
        if (bound := quotas.get(((USER, name),), _NONE).get(key)) is not None:
            return Held(user, "", bound)
    for client_name in (client_id, None) if client_id else ():
        if (bound := quotas.get(((CLIENT_ID, client_name),), _NONE).get(key)) is not None:
            return Held("", client_id, bound)
    return None


_NONE: dict[str, float] = {}


class NoFilter(Exception):
    """The components of a filter are none, and the error that says so."""

    def __init__(self, message: str, error_code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.error_code = error_code


class QuotaFilter:
    """What a DescribeClientQuotas asks for: all of its components have to match."""

    def __init__(self, components: list[dict[str, Any]], is_strict: bool) -> None:
        """`is_strict`: entities of more types than are named are left out. NoFilter if they are
        not to be understood."""
        self._is_strict = is_strict
        self._names: dict[str, str | None] = {}
        """Names by type, of those whose name is given."""
        self._types: set[str] = set()
        """The types of entities of which any name will do."""
        for component in components:
            self._add(component["entity_type"], component["match_type"], component["match"])
        kinds = self._types.union(self._names)
        if IP in kinds and len(kinds) > 1:
            raise NoFilter(
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component."
            )

    def _add(self, kind: str, match_type: int, match: str | None) -> None:
        if not kind:
            raise NoFilter("Invalid empty entity type.")
        if kind in self._names or kind in self._types:
            raise NoFilter(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise NoFilter(f"Unsupported entity type {kind}", UNSUPPORTED_VERSION)
        if match_type == EXACT:
            if match is None:
                raise NoFilter("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._names[kind] = match
        elif match_type in (DEFAULT, SPECIFIED):
            if match is not None:
                word = "DEFAULT" if match_type == DEFAULT else "SPECIFIED"
                raise NoFilter(
                    f"Request specified MATCH_TYPE_{word}, but also specified a match string."
                )
            if match_type == DEFAULT:
                self._names[kind] = None
            else:
                self._types.add(kind)
        else:
            raise NoFilter(f"Unknown match type {match_type}")

    def matches(self, entity: Entity) -> bool:
        """Whether the entity is among those that are asked for."""
        names = dict(entity)
        if self._is_strict and len(names) != len(self._names) + len(self._types):
            return False
        return self._types <= names.keys() and all(
            kind in names and names[kind] == name for kind, name in self._names.items()
        )
