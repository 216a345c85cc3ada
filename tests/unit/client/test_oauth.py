"""Tokens for OAUTHBEARER, out of a file and from a server, and what a broker is told of them."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from shmbroker.client import oauth
from shmbroker.client.connection import Connection
from shmbroker.client.faults import AuthenticationFault, LaterFault
from shmbroker.client.secrets import Secret
from shmbroker.client.security import Security
from shmbroker.errors import ConfigFault
from shmbroker.wire import codec, frame
from shmbroker.wire.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE, name_of

CLIENT = Security(
    "SASL_SSL",
    mechanism="OAUTHBEARER",
    client_id="spark",
    client_secret=Secret("hush"),
    scope="kafka",
)


def of_file(path: Path) -> Security:
    return Security("SASL_SSL", mechanism="OAUTHBEARER", token_url=path.as_uri())


def test_token_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    path.write_text("abc.def.ghi\n")
    assert oauth.token_of(of_file(path)).reveal() == "abc.def.ghi"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "can't be read: No such file"), ("\n", "holds no token"), ("hü", "is no text")],
)
def test_file_without_a_token(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigFault, match=complaint):
        oauth.token_of(of_file(path))


def test_what_a_token_says_of_its_end() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1999}).encode()).decode().rstrip("=")
    assert oauth.expires_s(f"head.{claims}.tail") == 1999
    for opaque in ("abc", "a.b.c", "a.e30.c"):
        assert oauth.expires_s(opaque) > 1e9


# --- a server ------------------------------------------------------------------------------------


class Server(HTTPServer):
    """Answers `status` and `body`; `asked` is what came."""

    status = 200
    body = '{"access_token": "abc", "token_type": "Bearer", "expires_in": 60}'
    asked = ""
    authorization = ""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.authorization = self.headers["Authorization"]
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.server.body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("authlib")
    with Server(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def at(server: Server) -> Security:
    return CLIENT._replace(token_url=f"http://127.0.0.1:{server.server_address[1]}/token")


def test_token_of_a_server(server: Server) -> None:
    assert oauth.token_of(at(server)).reveal() == "abc"
    asked = parse_qs(server.asked)
    assert (asked["grant_type"], asked["scope"]) == (["client_credentials"], ["kafka"])
    assert base64.b64decode(server.authorization.removeprefix("Basic ")) == b"spark:hush"


def test_server_that_gives_none(server: Server) -> None:
    server.status, server.body = 401, '{"error": "invalid_client"}'
    with pytest.raises(AuthenticationFault, match="gives client spark no token: invalid_client"):
        oauth.token_of(at(server))
    server.status, server.body = 200, "{}"
    with pytest.raises(AuthenticationFault, match="answers without a token"):
        oauth.token_of(at(server))
    server.status, server.body = 503, "busy"
    with pytest.raises(LaterFault, match="gives no answer"):
        oauth.token_of(at(server))


# --- a broker ------------------------------------------------------------------------------------


def answer_of(correlation_id: int, api_key: int, version: int, **body: object) -> bytes:
    encoded = codec.encode(f"{name_of(api_key)}Response", version, body)
    return frame.response_frame(api_key, version, correlation_id, encoded)


def test_token_is_told_to_a_broker_that_may_refuse_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        none = {"error_code": 0, "error_message": None, "session_lifetime_ms": 0}
        handshake = {"error_code": 0, "mechanisms": ["OAUTHBEARER"]}
        theirs.sendall(
            answer_of(1, SASL_HANDSHAKE, 1, **handshake)
            + answer_of(2, SASL_AUTHENTICATE, 2, auth_bytes=b"", **none)
            + answer_of(3, SASL_HANDSHAKE, 1, **handshake)
            + answer_of(4, SASL_AUTHENTICATE, 2, auth_bytes=b'{"status":"invalid"}', **none)
            + answer_of(5, SASL_AUTHENTICATE, 2, auth_bytes=b"", **none | {"error_code": 58})
        )
        connection = Connection(ours, "h:1", "me", security=of_file(tmp_path / "token"))
        connection.authenticate()
        assert b"n,,\1auth=Bearer abc\1\1" in theirs.recv(1 << 16)
        with pytest.raises(AuthenticationFault, match="h:1 does not let this client in"):
            connection.authenticate()
