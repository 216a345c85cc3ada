"""Users with a password for SCRAM (KIP-554), asked of a cluster in one of two ways.

   over_control   by the control socket of a family of this host, which asks for no password
   over_network   by the protocol, of any Kafka cluster

A password is salted here: no broker sees it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from shmbroker.client import admin
from shmbroker.client.connection import Connection, connect_control
from shmbroker.client.faults import ClusterFault
from shmbroker.errors import ProtocolFault
from shmbroker.security.sasl.scram import MECHANISMS, ScramMechanism, salted
from shmbroker.wire.api_keys import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from shmbroker.client.addresses import Address

    Users = dict[str, dict[str, int]]
    """Iterations, by user and mechanism."""

ANSWER_S = 30.0

_VERSIONS = {ALTER_USER_SCRAM_CREDENTIALS: 0, DESCRIBE_USER_SCRAM_CREDENTIALS: 0}
_NAMES = {mechanism.code: name for name, mechanism in MECHANISMS.items()}


class UserAdmin:
    """A cluster's users. Its methods raise ClusterFault where the cluster refuses."""

    def __init__(self, ask: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
        """ask: gives the answer to a request, by the key of its API and its body."""
        self._ask = ask

    def users(self) -> Users:
        """All of them."""
        answer = self._ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        admin.refuse(answer["error_code"], "users", answer["error_message"], "describe")
        return {
            row["user"]: {
                _NAMES.get(info["mechanism"], str(info["mechanism"])): info["iterations"]
                for info in row["credential_infos"]
            }
            for row in answer["results"]
        }

    def set_password(
        self, user: str, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> None:
        """Give a user a password for a mechanism."""
        upsertion = {
            "name": user,
            "mechanism": mechanism.code,
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted(mechanism, password, salt, iterations),
        }
        self._alter({"deletions": [], "upsertions": [upsertion]})

    def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """Take a user's password for a mechanism away."""
        deletion = {"name": user, "mechanism": mechanism.code}
        self._alter({"deletions": [deletion], "upsertions": []})

    def _alter(self, body: dict[str, Any]) -> None:
        (row,) = self._ask(ALTER_USER_SCRAM_CREDENTIALS, body)["results"]
        admin.refuse(row["error_code"], f"user {row['user']}", row["error_message"], "alter")


def over_network(addresses: Sequence[Address]) -> UserAdmin:
    """Ask the first of these that can be reached."""

    def ask(api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        return admin.ask(addresses, api_key, body, _VERSIONS[api_key])

    return UserAdmin(ask)


@contextmanager
def over_control(data: str, client_id: str) -> Iterator[UserAdmin]:
    """Ask by the control socket of the family that works on a data directory; ClusterFault if it
    can't be reached."""
    try:
        connection = connect_control(data, ANSWER_S, client_id, _VERSIONS)
    except OSError as fault:
        raise ClusterFault(f"no broker can be asked at {data}: {fault.strerror}") from None
    try:
        yield UserAdmin(partial(_ask_control, connection))
    finally:
        connection.close()


def _ask_control(connection: Connection, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return connection.ask(api_key, body)
    except ConnectionError:
        raise ClusterFault(
            "the control socket refuses to change users: only who runs the broker may, or root"
        ) from None
    except (OSError, ProtocolFault) as fault:
        raise ClusterFault(f"the control socket gives no answer: {fault}") from None
