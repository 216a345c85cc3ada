"""Tokens for OAUTHBEARER: out of a file, or from an authorization server for a client's id and
secret (client credentials, RFC 6749), by Authlib."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from urllib.parse import unquote, urlsplit

from shmbroker import clock, extras
from shmbroker.client.faults import AuthenticationFault, LaterFault
from shmbroker.client.secrets import Secret
from shmbroker.client.security import Security
from shmbroker.errors import ConfigFault

ANSWER_S = 10.0
_LIFE_S = 300.0
"""The life of a token that does not say when it expires."""


def token_of(security: Security) -> Secret:
    """A token of now; ConfigFault if the file can't be read, LaterFault if the server gives no
    answer, AuthenticationFault if it gives no token."""
    url = security.token_url
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        try:
            with open(path, encoding="ascii") as file:
                token = file.read().strip()
        except OSError as error:
            raise ConfigFault(f"the token's file {path} can't be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigFault(f"the token's file {path} is no text") from None
        if not token or not token.isprintable():
            raise ConfigFault(f"the token's file {path} holds no token")
        return Secret(token)
    return _fetched(security)


def _fetched(security: Security) -> Secret:
    try:
        from authlib.integrations.base_client import OAuthError
        from authlib.integrations.requests_client import OAuth2Session
        from requests import RequestException
    except ImportError:
        raise ConfigFault(extras.complaint("authlib", "a token from an https address")) from None
    secret = security.client_secret
    assert secret is not None
    session = OAuth2Session(security.client_id, secret.reveal(), scope=security.scope or None)
    with session:
        try:
            answer = session.fetch_token(
                security.token_url, grant_type="client_credentials", timeout=ANSWER_S
            )
        except OAuthError as error:
            raise AuthenticationFault(
                f"{security.token_url} gives client {security.client_id} no token: {error.error}"
            ) from None
        except (RequestException, ValueError) as error:
            raise LaterFault(
                f"{security.token_url} gives no answer: {type(error).__name__}"
            ) from None
    token = answer.get("access_token")
    if not isinstance(token, str) or not token:
        raise AuthenticationFault(f"{security.token_url} answers without a token")
    return Secret(token)


def expires_s(token: str) -> float:
    """When a token expires, in seconds since 1970, as it says itself; else a while from now."""
    soon_s = clock.now_ms() / 1000 + _LIFE_S
    parts = token.split(".")
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return soon_s
