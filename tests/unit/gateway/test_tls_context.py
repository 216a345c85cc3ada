"""Keys and certificates from settings: what is taken, and what is refused with which words."""

import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.gateway import tls_context
from shmbroker.gateway.tls_context import TlsContext
from shmbroker.settings.broker_config import BrokerConfig
from tests.support.certificates import Authority

AUTHORITY = Authority()
SERVER = AUTHORITY.sign("CN=localhost")
OTHER = AUTHORITY.sign("CN=other")
LISTENERS = {"listeners": "IN://127.0.0.1:0", "listener.security.protocol.map": "IN:SSL"}


def load(settings: dict[str, Any], protocol: str = "SSL") -> TlsContext:
    given = LISTENERS | {"listener.security.protocol.map": f"IN:{protocol}"}
    config = BrokerConfig(given | {name: str(value) for name, value in settings.items()})
    return tls_context.load(config, config.listeners[0])


def refusal(settings: dict[str, Any], protocol: str = "SSL") -> str:
    with pytest.raises(ConfigFault) as fault:
        load(settings, protocol)
    return str(fault.value)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return SERVER.written(tmp_path / "server.pem")


def test_a_pem_file_has_key_and_certificates(store: Path) -> None:
    loaded = load({"ssl.keystore.location": store})
    assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert loaded.context.maximum_version == ssl.TLSVersion.TLSv1_3
    assert loaded.context.verify_mode == ssl.CERT_NONE
    assert loaded.ends == SERVER.certificate.not_valid_after_utc
    assert loaded.prints_now() == loaded.prints
    OTHER.written(store)
    assert loaded.prints_now() != loaded.prints
    store.unlink()
    assert loaded.prints_now() == (None,)


@pytest.mark.parametrize("fold", [lambda pem: pem, lambda pem: pem.replace("\n", " ")])
def test_pem_may_stand_in_the_settings(fold: Any) -> None:
    """In a properties file it is one line, with spaces where its lines end."""
    loaded = load(
        {
            "ssl.keystore.key": fold(SERVER.key_pem("secret")),
            "ssl.keystore.certificate.chain": fold(SERVER.certificate_pem + AUTHORITY.pem),
            "ssl.key.password": "secret",
            "ssl.truststore.certificates": fold(AUTHORITY.pem),
            "ssl.client.auth": "required",
        }
    )
    assert loaded.prints == ()
    assert len(loaded.context.get_ca_certs()) == 1
    assert loaded.context.verify_mode == ssl.CERT_REQUIRED


def test_passwords_and_keys_may_lie_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "tls-key").write_text(SERVER.key_pem("secret"))
    (tmp_path / "tls-password").write_text("secret\n")
    settings = {
        "ssl.keystore.key": "${credential:tls-key}",
        "ssl.keystore.certificate.chain": SERVER.certificate_pem,
        "ssl.key.password": "${credential:tls-password}",
    }
    assert load(settings).ends == SERVER.certificate.not_valid_after_utc
    (tmp_path / "tls-password").unlink()
    assert "listener IN: ssl.key.password" in refusal(settings)


def test_a_listener_may_have_its_own(store: Path, tmp_path: Path) -> None:
    other = AUTHORITY.sign("CN=own", days=3).written(tmp_path / "own.pem")
    own = {"listener.name.in.ssl.keystore.location": other, "ssl.keystore.location": store}
    assert load(own).prints[0][0] == str(other)


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_pkcs12_is_read_by_the_names_that_java_has_for_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "keys.p12"
    path.write_bytes(SERVER.pkcs12("secret"))
    settings = {"ssl.keystore.location": path, "ssl.keystore.type": kind}
    loaded = load(settings | {"ssl.keystore.password": "secret"})
    assert loaded.ends == SERVER.certificate.not_valid_after_utc
    said = refusal(settings | {"ssl.keystore.password": "wrong"})
    assert "its password is another one" in said
    assert "wrong" not in said
    assert "set ssl.keystore.type=PKCS12" in refusal({"ssl.keystore.location": path})


def test_javas_own_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.jks"
    path.write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    said = refusal({"ssl.keystore.location": path, "ssl.keystore.type": "JKS"})
    assert f"keytool -importkeystore -srckeystore {path} -destkeystore {tmp_path}/keys.p12" in said


def test_what_does_not_go_together_is_refused(store: Path, tmp_path: Path) -> None:
    keys = {"ssl.keystore.location": store}
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing\n")
    bare = tmp_path / "bare.pem"
    bare.write_text(SERVER.certificate_pem)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text(OTHER.key_pem() + SERVER.certificate_pem)
    closed = tmp_path / "closed.pem"
    closed.write_text(SERVER.key_pem("secret") + SERVER.certificate_pem)
    broken = tmp_path / "broken.pem"
    broken.write_text(SERVER.key_pem() + SERVER.certificate_pem.replace("MII", "QII", 1))
    in_settings = {"ssl.keystore.key": SERVER.key_pem()}
    table: list[tuple[dict[str, Any], str]] = [
        ({}, "TLS needs a key and its certificate: set ssl.keystore.location"),
        ({"ssl.keystore.location": tmp_path / "no"}, "can't be read: No such file"),
        ({"ssl.keystore.location": empty}, "there is no certificate in"),
        ({"ssl.keystore.location": bare}, "there is no private key in"),
        ({"ssl.keystore.location": wrong}, "its first certificate is not that of its key"),
        ({"ssl.keystore.location": broken}, "can't be used"),
        ({"ssl.keystore.location": closed}, "has a password: set ssl.key.password"),
        (
            {"ssl.keystore.location": closed, "ssl.key.password": "guess"},
            "ssl.key.password is not the password of its key",
        ),
        (keys | in_settings, "leave out one"),
        (in_settings, "go together: set both"),
        (keys | {"ssl.keystore.password": "x"}, "a PEM file has no ssl.keystore.password"),
        (keys | {"ssl.keystore.type": "BKS"}, "make it PEM or PKCS12"),
        (keys | {"ssl.client.auth": "required"}, "set ssl.truststore.location"),
        (
            keys | {"ssl.client.auth": "requested", "ssl.truststore.location": empty},
            "there is no certificate in",
        ),
        (keys | {"ssl.principal.mapping.rules": "RULE:x"}, "Invalid rule: `RULE:x`"),
        (keys | {"ssl.cipher.suites": "TLS_NONE_SUCH"}, "which this OpenSSL does not have"),
        (keys | {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "all of its suites or none"),
        (
            keys
            | {
                "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "ssl.enabled.protocols": "TLSv1.3",
            },
            "leave no version of TLS",
        ),
    ]
    for settings, words in table:
        if "all of its" in words and hasattr(ssl.SSLContext, "set_ciphersuites"):
            continue
        said = refusal(settings)
        assert words in said
        assert said.startswith("listener IN: ")
        assert "guess" not in said and "PRIVATE" not in said


@pytest.mark.parametrize(
    ("suites", "openssl", "versions"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", {"ECDHE-RSA-AES128-GCM-SHA256"}, "1.2"),
        ("ECDHE-RSA-AES256-SHA", {"ECDHE-RSA-AES256-SHA"}, "1.2"),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_RSA_WITH_AES_256_CBC_SHA256,"
            "TLS_DHE_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
            {
                "ECDHE-ECDSA-CHACHA20-POLY1305",
                "AES256-SHA256",
                "DHE-RSA-AES128-SHA",
                "ECDHE-ECDSA-AES256-SHA384",
            },
            "1.2",
        ),
        (",".join(tls_context.SUITES_1_3), None, "1.3"),
        (
            ",".join((*tls_context.SUITES_1_3, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")),
            {"ECDHE-RSA-AES128-GCM-SHA256"},
            "1.2,1.3",
        ),
    ],
)
def test_cipher_suites_by_their_registered_names(
    store: Path, suites: str, openssl: set[str] | None, versions: str
) -> None:
    context = load({"ssl.keystore.location": store, "ssl.cipher.suites": suites}).context
    newest = set(tls_context.SUITES_1_3)
    if openssl is not None:
        assert {each["name"] for each in context.get_ciphers()} - newest == openssl
    first, last = versions.split(",")[0], versions.split(",")[-1]
    assert context.minimum_version == tls_context.VERSIONS[f"TLSv{first}"]
    assert context.maximum_version == tls_context.VERSIONS[f"TLSv{last}"]


def test_with_sasl_client_certificates_are_asked_for_by_that_listener_alone(
    store: Path, tmp_path: Path
) -> None:
    """KIP-684."""
    trust = tmp_path / "ca.pem"
    trust.write_text(AUTHORITY.pem)
    keys = {"ssl.keystore.location": store, "ssl.truststore.location": trust}
    for name, wanted in (
        ("ssl.client.auth", ssl.CERT_NONE),
        ("listener.name.in.ssl.client.auth", ssl.CERT_REQUIRED),
    ):
        loaded = load(keys | {name: "required"}, "SASL_SSL")
        assert loaded.context.verify_mode == wanted


def test_the_end_of_a_certificate_is_told_in_time(tmp_path: Path) -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    found = []
    for days in (-1, 3, 30):
        path = AUTHORITY.sign("CN=x", days).written(tmp_path / "keys.pem")
        loaded = load({"ssl.keystore.location": path})
        found += tls_context.complaints([("IN", loaded)], now_ms)
    ended, soon = found
    assert "the certificate of listener IN has ended, at " in ended
    assert "the certificate of listener IN ends in 3 days, at " in soon


def test_a_trust_store_of_javas_keytool_is_read(store: Path, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text(AUTHORITY.pem)
    path = tmp_path / "trust.p12"
    try:
        subprocess.run(
            ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", ca, "-keystore", path,
             "-storetype", "PKCS12", "-storepass", "secret"],
            check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("keytool, which comes with Java, is not there")
    settings = {
        "ssl.keystore.location": store,
        "ssl.truststore.location": path,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.password": "secret",
        "ssl.client.auth": "required",
    }
    assert len(load(settings).context.get_ca_certs()) == 1
