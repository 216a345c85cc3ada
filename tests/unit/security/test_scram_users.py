"""Users of SCRAM from the metadata image, and those who stand in for nobody."""

from shmbroker.metadata.security_image import ScramCredential, SecurityImage
from shmbroker.security.sasl.scram_users import ScramUsers


def users(image: SecurityImage, secret: bytes = b"secret") -> ScramUsers:
    return ScramUsers(lambda: image, secret)


def test_a_user_has_a_password_for_a_mechanism() -> None:
    image = SecurityImage()
    image.scram["alice", 2] = found = ScramCredential(b"salt", b"stored", b"server", 8192)
    assert users(image).lookup("SCRAM-SHA-512", "alice") is found
    assert users(image).lookup("SCRAM-SHA-256", "alice") is None
    assert users(image).lookup("SCRAM-SHA-512", "bob") is None


def test_who_stands_in_is_the_same_each_time_and_another_for_each_name() -> None:
    one = users(SecurityImage())
    assert one.stand_in("SCRAM-SHA-256", "bob") == one.stand_in("SCRAM-SHA-256", "bob")
    salts = {one.stand_in("SCRAM-SHA-256", name).salt for name in ("bob", "carol", "dave")}
    assert len(salts) == 3
    other = users(SecurityImage(), b"of another family")
    assert other.stand_in("SCRAM-SHA-256", "bob") != one.stand_in("SCRAM-SHA-256", "bob")


def test_who_stands_in_looks_like_a_user() -> None:
    image = SecurityImage()
    image.scram["alice", 1] = ScramCredential(b"s" * 100, b"", b"", 8192)
    image.scram["alice", 2] = ScramCredential(b"s" * 7, b"", b"", 4096)
    found = users(image).stand_in("SCRAM-SHA-256", "bob")
    assert (len(found.salt), found.iterations) == (100, 8192)


def test_there_are_no_tokens_unless_somebody_knows_them() -> None:
    assert users(SecurityImage()).token("SCRAM-SHA-256", "alice") is None
