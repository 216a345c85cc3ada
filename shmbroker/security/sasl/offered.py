"""What a listener's settings offer of SASL: mechanisms, and the users that they name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from shmbroker import extras
from shmbroker.errors import ConfigFault
from shmbroker.security.sasl import bearer, jaas, plain, scram
from shmbroker.security.sasl.jwt import Expected
from shmbroker.security.sasl.plain import PlainUsers
from shmbroker.settings import secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shmbroker.settings.broker_config import BrokerConfig

SERVED = (plain.NAME, *scram.MECHANISMS, bearer.NAME)
SCHEMES = ("https:", "http:", "file:")


class Tokens(NamedTuple):
    """The tokens that are taken, and where their keys are."""

    url: str
    refresh_ms: int
    rest_ms: int
    rest_ms_max: int
    expected: Expected


class Offered(NamedTuple):
    """What one listener offers."""

    mechanisms: dict[str, int]
    """Mechanisms in the order of the settings, with the milliseconds after which a client has to
    authenticate again; 0: never."""
    plain_users: PlainUsers
    tokens: Tokens | None


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
        _tokens(config, listener) if bearer.NAME in names else None,
    )


def _tokens(config: BrokerConfig, listener: str) -> Tokens:
    def of(name: str) -> Any:
        return config.of_listener(listener, f"sasl.oauthbearer.{name}", bearer.NAME)

    if find_spec("joserfc") is None:
        what = f"OAUTHBEARER, which listener {listener} offers,"
        raise ConfigFault(f"{extras.complaint('joserfc', what)}.")
    url = of("jwks.endpoint.url")
    if url is None or not url.startswith(SCHEMES):
        raise ConfigFault(
            f"Listener {listener} offers OAUTHBEARER, but nothing names the keys of its tokens: "
            "set sasl.oauthbearer.jwks.endpoint.url to a URL (https:, file:)."
        )
    return Tokens(
        url,
        of("jwks.endpoint.refresh.ms"),
        of("jwks.endpoint.retry.backoff.ms"),
        of("jwks.endpoint.retry.backoff.max.ms"),
        Expected(
            of("expected.audience") or (),
            of("expected.issuer"),
            of("sub.claim.name"),
            of("scope.claim.name"),
            of("clock.skew.seconds"),
        ),
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
