"""A raw client that shows who it is by SASL/PLAIN before it asks anything."""

from tests.support.raw_client import RawClient


class SaslClient(RawClient):
    """RawClient of a SASL_PLAINTEXT listener."""

    def __init__(self, address: str, user: str, password: str, timeout: float = 15.0) -> None:
        super().__init__(address, timeout)
        answer = self.ask("SaslHandshake", 1, {"mechanism": "PLAIN"})
        assert answer["error_code"] == 0, answer
        token = f"\0{user}\0{password}".encode()
        answer = self.ask("SaslAuthenticate", 2, {"auth_bytes": token})
        assert answer["error_code"] == 0, answer
