"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

DAY = datetime.timedelta(days=1)


class Signed(NamedTuple):
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def key_pem(self, password: str = "") -> str:
        closed: KeySerializationEncryption = NoEncryption()
        if password:
            closed = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, closed).decode()

    @property
    def pem(self) -> str:
        return self.key_pem() + self.certificate_pem

    def pkcs12(self, password: str) -> bytes:
        closed = BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(
            b"mine", self.key, self.certificate, None, closed
        )

    def written(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path


class Authority:
    """Signs certificates of this name and others."""

    def __init__(self, name: str = "test authority") -> None:
        self.own = self._sign(x509.Name.from_rfc4514_string(f"CN={name}"), None, 30)

    @property
    def pem(self) -> str:
        return self.own.certificate_pem

    def sign(self, subject: str, days: float = 30) -> Signed:
        """A certificate for 127.0.0.1 and localhost, and for clients."""
        return self._sign(x509.Name.from_rfc4514_string(subject), self.own, days)

    def _sign(self, subject: x509.Name, issuer: Signed | None, days: float) -> Signed:
        import ipaddress

        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 400 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        )
        if issuer is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signer = issuer.key if issuer else key
        return Signed(key, builder.sign(signer, hashes.SHA256()))
