"""X.509 certificates, as far as we read them ourselves: whose they are, until when they hold. Pure.

Python's `ssl` checks certificates, and hands them over as DER. What a client's principal is made of
is its subject as Java writes it (RFC 2253, `X500Principal.getName()`), as Kafka does: ACLs that
came along from there name it so.

   Certificate ::= SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer,
                                         SEQUENCE { not before, not after }, subject, … }, … }
   Name        ::= SEQUENCE of SET of SEQUENCE { type, value }

* The last relative name comes first; those of one set stay in their order.
* Types that RFC 2253 has a word for are written by it, and as text where the value is one;
  everything else is `1.2.3=#` and the value's bytes.

Source: RFC 5280, RFC 2253, and what Java 17 makes of odd names (a test has the table).
"""

from datetime import UTC, datetime

KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}

SOON_DAYS = 14
"""A certificate that ends within these is warned about."""

UTC_TIME = 0x17
VERSION = 0xA0
TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""Tags of UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString."""

_ESCAPED = frozenset(',=+<>#;"\\')


def subject_of(certificate: bytes) -> str:
    """The subject of a DER certificate, as Java writes it. ValueError: it is none."""
    return name_text(_parts(certificate)[1])


def not_after(certificate: bytes) -> datetime:
    """When a DER certificate ends. ValueError: it is none."""
    _, validity = _child(_parts(certificate)[0])
    _, rest = _element(validity)
    (tag, value), _ = _element(rest)
    text = value.decode("ascii")
    if tag == UTC_TIME:  # two digits of the year: RFC 5280, 4.1.2.5.1
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def name_text(name: bytes) -> str:
    """A DER name, as Java writes it. ValueError: it is none."""
    relative = []
    _, rest = _child(name)
    while rest:
        (_, attributes), rest = _element(rest)
        texts = []
        while attributes:
            (_, attribute), attributes = _element(attributes)
            (_, type_), value = _element(attribute)
            texts.append(_attribute_text(_oid(type_), value))
        relative.append("+".join(texts))
    return ",".join(reversed(relative))


def _parts(certificate: bytes) -> tuple[bytes, bytes]:
    """Validity and subject, each with its head."""
    _, body = _child(certificate)
    _, body = _child(body)
    if body[:1] == bytes([VERSION]):
        _, body = _element(body)
    for _ in range(3):  # serial number, algorithm, issuer
        _, body = _element(body)
    _, after = _element(body)
    _, rest = _element(after)
    return body[: len(body) - len(after)], after[: len(after) - len(rest)]


def _child(data: bytes) -> tuple[int, bytes]:
    """Tag and content of the first element."""
    element, _ = _element(data)
    return element


def _element(data: bytes) -> tuple[tuple[int, bytes], bytes]:
    """Tag and content of the first element, and what lies behind it."""
    if len(data) < 2:
        raise ValueError("the certificate is cut short")
    length, at = data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    if at + length > len(data):
        raise ValueError("the certificate is cut short")
    return (data[0], data[at : at + length]), data[at + length :]


def _oid(data: bytes) -> str:
    numbers = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2) if numbers else 0
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:]) if numbers else ()))


def _attribute_text(oid: str, element: bytes) -> str:
    tag, value = _child(element)
    keyword = KEYWORDS.get(oid)
    if keyword is None or tag not in TEXTS:
        return f"{keyword or oid}=#{element.hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    start = text.index(inner) if inner else len(text)
    end = start + len(inner)
    found = []
    for at, letter in enumerate(text):
        if letter == "\0":
            found.append("\\00")
        elif letter in _ESCAPED or (letter == " " and not start <= at < end):
            found.append("\\" + letter)
        else:
            found.append(letter)
    return "".join(found)
