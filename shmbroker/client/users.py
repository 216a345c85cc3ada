"""Users with a password for SCRAM (KIP-554), asked of a cluster in one of two ways.

   over_control   by the control socket of a family of this host, which asks for no password
   over_network   by an AdminClient of confluent-kafka, of any Kafka cluster

A password is salted here: no broker sees it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Protocol

from shmbroker.client.connection import Connection, connect_control
from shmbroker.client.faults import ClusterFault, refuse
from shmbroker.errors import ProtocolFault
from shmbroker.security.sasl.scram import MECHANISMS, ScramMechanism, salted
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Users = dict[str, dict[str, int]]
    """Iterations, by user and mechanism."""

ANSWER_S = 30.0

_VERSIONS = {ALTER_USER_SCRAM_CREDENTIALS: 0, DESCRIBE_USER_SCRAM_CREDENTIALS: 0}
_NAMES = {mechanism.code: name for name, mechanism in MECHANISMS.items()}


class UserAdmin(Protocol):
    """The way to a cluster's users. ClusterFault where the cluster refuses."""

    def users(self) -> Users:
        """All of them."""

    def set_password(
        self, user: str, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> None:
        """Give a user a password for a mechanism."""

    def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """Take a user's password for a mechanism away."""


class OverControl:
    """The way by the control socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def users(self) -> Users:
        """See `UserAdmin`."""
        answer = self._ask(DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        refuse(answer["error_code"], "users", answer["error_message"])
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
        """See `UserAdmin`."""
        upsertion = {
            "name": user,
            "mechanism": mechanism.code,
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted(mechanism, password, salt, iterations),
        }
        self._alter({"deletions": [], "upsertions": [upsertion]})

    def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """See `UserAdmin`."""
        deletion = {"name": user, "mechanism": mechanism.code}
        self._alter({"deletions": [deletion], "upsertions": []})

    def _alter(self, body: dict[str, Any]) -> None:
        (row,) = self._ask(ALTER_USER_SCRAM_CREDENTIALS, body)["results"]
        error = row["error_code"]
        refuse(error, f"user {row['user']}", row["error_message"] or error_codes.message_of(error))

    def _ask(self, api_key: int, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._connection.ask(api_key, body)
        except ConnectionError:
            raise ClusterFault(
                "the control socket refuses to change users: only who runs the broker may, or root"
            ) from None
        except (OSError, ProtocolFault) as fault:
            raise ClusterFault(f"the control socket gives no answer: {fault}") from None


class OverNetwork:
    """The way by an AdminClient."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin

    def users(self) -> Users:
        """See `UserAdmin`."""
        found = self._admin.describe_user_scram_credentials(request_timeout=ANSWER_S).result()
        return {
            user: {
                _NAMES.get(info.mechanism.value, info.mechanism.name): info.iterations
                for info in description.scram_credential_infos
            }
            for user, description in found.items()
        }

    def set_password(
        self, user: str, mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
    ) -> None:
        """See `UserAdmin`."""
        from confluent_kafka.admin import (
            ScramCredentialInfo,
            UserScramCredentialUpsertion,
        )
        from confluent_kafka.admin import ScramMechanism as TheirMechanism

        info = ScramCredentialInfo(TheirMechanism(mechanism.code), iterations)
        self._alter(user, UserScramCredentialUpsertion(user, info, password.encode(), salt))

    def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """See `UserAdmin`."""
        from confluent_kafka.admin import ScramMechanism as TheirMechanism
        from confluent_kafka.admin import UserScramCredentialDeletion

        self._alter(user, UserScramCredentialDeletion(user, TheirMechanism(mechanism.code)))

    def _alter(self, user: str, alteration: Any) -> None:
        made = self._admin.alter_user_scram_credentials([alteration], request_timeout=ANSWER_S)
        made[user].result()


@contextmanager
def over_control(data: str, client_id: str) -> Iterator[OverControl]:
    """Ask by the control socket of the family that works on a data directory; ClusterFault if it
    can't be reached."""
    try:
        connection = connect_control(data, ANSWER_S, client_id, _VERSIONS)
    except OSError as fault:
        raise ClusterFault(f"no broker can be asked at {data}: {fault.strerror}") from None
    try:
        yield OverControl(connection)
    finally:
        connection.close()
