"""Names in certificates, as Java 17 writes them: `X500Principal.getName()` made the table."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.security.certificate import name_text, not_after, subject_of
from tests.support.certificates import Authority

NAMES = {
    "300f310d300b06035504030c045a6fc3ab": "CN=Zoë",
    "3000": "",
    "300b3109300706035504031300": "CN=",
    "300f310d300b0603550403130461202062": "CN=a  b",
    "301e311c301a06035504030c13612c622b6322645c653c663e673b683d69236a": (
        'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'
    ),
    "3010310e300c06035504030c052020612020": "CN=\\ \\ a\\ \\ ",
    "300c310a300806035504030c0120": "CN=\\ ",
    "300e310c300a06035504030c03610062": "CN=a\\00b",
    "300e310c300a06035504030c03610a62": "CN=a\nb",
    "3022310a300806035504031301783114301206092a864886f70d01090116056140622e63": (
        "1.2.840.113549.1.9.1=#16056140622e63,CN=x"
    ),
    "301a310a30080603550403130178310c300a06032a03041303666f6f": "1.2.3.4=#1303666f6f,CN=x",
    "3028310a30080603550403130178310b3009060355040513023132310d300b060355040c1304626f7373": (
        "2.5.4.12=#1304626f7373,2.5.4.5=#13023132,CN=x"
    ),
    "301f310a300806035504091301733111300f060a0992268993f22c640101130175": "UID=u,STREET=s",
    "30273125300806035504031301783008060355040b13017a300f060a0992268993f22c640101130179": (
        "CN=x+OU=z+UID=y"
    ),
    "303331133011060a0992268993f22c64011916036f72673111300f060a0992268993f22c6401191601783109"
    "3007060355040a0c00": "O=,DC=x,DC=org",
    # other types of text, and what is none
    "300e310c300a060355040314035a6feb": "CN=Zo\ufffd",
    "300f310d300b06035504031e04005a006f": "CN=\\00Z\\00o",
    "300e310c300a06035504031203313233": "CN=#1203313233",
    "300e310c300a06035504031a03766973": "CN=#1a03766973",
    "300f310d300b06035504031c040000005a": "CN=#1c040000005a",
    "300c310a30080603550403020105": "CN=#020105",
    "300e310c300a06035504031b0367656e": "CN=gen",
}


@pytest.mark.parametrize("der", NAMES)
def test_a_name_is_written_as_java_does(der: str) -> None:
    assert name_text(bytes.fromhex(der)) == NAMES[der]


@pytest.mark.parametrize("days", [1, 9000, 30000])  # beyond 2050 the form of times is another
def test_subject_and_end_of_a_certificate(days: int) -> None:
    signed = Authority().sign("CN=alice,O=Acme\\, Inc.,C=DE", days)
    assert subject_of(signed.der) == "CN=alice,O=Acme\\, Inc.,C=DE"
    wanted = datetime.now(UTC) + timedelta(days)
    assert abs(not_after(signed.der) - wanted) < timedelta(minutes=10)


@given(st.binary(max_size=64))
def test_what_is_no_certificate_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        subject_of(data)
