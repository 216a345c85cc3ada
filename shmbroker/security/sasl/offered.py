"""What a listener's settings offer of SASL: mechanisms, and the users that they name."""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.errors import ConfigFault
from shmbroker.security.sasl import jaas, plain, scram
from shmbroker.security.sasl.plain import PlainUsers
from shmbroker.settings import secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from shmbroker.settings.broker_config import BrokerConfig

SERVED = (plain.NAME, *scram.MECHANISMS)


class Offered(NamedTuple):
    """Of one listener."""

    mechanisms: dict[str, int]
    """In the order of the settings, with the milliseconds after which a client has to authenticate
    again; 0: never."""
    plain_users: PlainUsers


def offered(config: BrokerConfig, listener: str, env: Mapping[str, str]) -> Offered:
    """What the settings say; ConfigFault, in one sentence with the fix, if it can't be served."""
    names = config.of_listener(listener, "sasl.enabled.mechanisms")
    where = f"listener.name.{listener.lower()}."
    for name in names:
        if name not in SERVED:
            raise ConfigFault(
                f"Listener {listener} offers the mechanism {name}, which is not served: set "
                f"{where}sasl.enabled.mechanisms to some of {', '.join(SERVED)}."
            )
    users: dict[str, str] = {}
    if plain.NAME in names:
        users = _plain_users(config, listener, env, f"{where}plain.sasl.jaas.config")
    return Offered(
        {name: config.of_listener(listener, "connections.max.reauth.ms", name) for name in names},
        PlainUsers(users),
    )


def _plain_users(
    config: BrokerConfig, listener: str, env: Mapping[str, str], setting: str
) -> dict[str, str]:
    text = config.of_listener(listener, "sasl.jaas.config", plain.NAME)
    if text is None:
        raise ConfigFault(
            f"Listener {listener} offers PLAIN, but nothing names its users: set {setting} to "
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="…";.'
        )
    if secrets.is_reference(text):
        text = secrets.resolved(text, env, setting)
    try:
        users = jaas.parse(text).users
    except ValueError as fault:
        raise ConfigFault(f"{setting} can't be understood: {fault}.") from None
    return {
        name: secrets.resolved(password, env, f"{setting}, user {name}")
        for name, password in users.items()
    }
