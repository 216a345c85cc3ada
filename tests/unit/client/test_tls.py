"""What a client is told of certificates that have ended, its own and the broker's."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from shmbroker.client.faults import AuthenticationFault
from shmbroker.client.security import security_of
from shmbroker.client.tls import encrypted
from tests.support.certificates import Authority

ENDED = -0.5
"""Days."""


def refusal(place: Path, broker_days: float, client_days: float) -> str:
    """The sentence of a handshake in which both sides show certificates of so many days."""
    authority = Authority()
    (place / "ca.pem").write_text(authority.pem)
    authority.sign("CN=broker", broker_days).written(place / "broker.pem")
    authority.sign("CN=client", client_days).written(place / "client.pem")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.maximum_version = ssl.TLSVersion.TLSv1_2  # the alert comes within the handshake
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(place / "broker.pem")
    serving.load_verify_locations(place / "ca.pem")

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with accepted, pytest.raises(ssl.SSLError):
            serving.wrap_socket(accepted, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        security = security_of(
            {
                "security.protocol": "SSL",
                "ssl.ca.location": str(place / "ca.pem"),
                "ssl.certificate.location": str(place / "client.pem"),
            }
        )
        with (
            socket.create_connection(listener.getsockname()) as connected,
            pytest.raises(AuthenticationFault) as fault,
        ):
            encrypted(connected, "localhost", security, "b:1")
        server.join()
    return str(fault.value)


def test_certificate_of_a_broker_that_has_ended_is_not_cured_by_another_authority(
    tmp_path: Path,
) -> None:
    assert refusal(tmp_path, ENDED, 30) == (
        "the certificate of b:1 is not trusted: certificate has expired;"
        " give the broker a new one, or set this host's clock right"
    )


def test_certificate_of_a_client_that_has_ended_is_to_be_a_new_one(tmp_path: Path) -> None:
    assert "certificate expired): get a new one into ssl.certificate.location" in refusal(
        tmp_path, 30, ENDED
    )
