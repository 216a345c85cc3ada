"""Decode and encode functions, compiled out of the schema table when first used.

For each (message, version) that is asked for, two Python functions are written, compiled and kept:
straight-line code, fixed-size fields next to each other read or written by one Struct
(`decoder_source`, `encoder_source`).

A message is a dict with snake_case keys, as the table names them:

    int*, uint*, float64, bool   int, float, bool          struct   dict
    string                       str                       array    list
    bytes                        bytes (copied)            null     None
    uuid                         bytes, always 16
    records                      decoded: a memoryview of the buffer, not copied; encoded: any bytes

* A decoded message has every field of the message; those that its version lacks have their default.
* To encode, absent keys stand for the default; keys that the message does not know are not looked
  at. A field that the version lacks is left out if the table calls it ignorable, and must have its
  default otherwise, as in Kafka. Values that do not fit raise ProtocolFault too, with the cause
  attached.
* Only `records` keep the buffer alive: what releases it (a ring) drops them first.
* Unknown tagged fields are skipped. Malformed bytes raise ProtocolFault: truncation, null or a
  negative length where there must be a value, text that isn't UTF-8, a tagged field of another size
  than it says. An array's count is checked against the bytes left and lists grow by appending, but
  small elements still become up to a hundred times their size in dicts, and a MiB of them takes a
  third of a second to read: what a stranger has sent goes through `decode_request`, which bounds
  their number.

Compiling one of the larger functions takes much longer than running it: a process that forks may do
it before.

Source: KIP-482 and what Kafka's MessageDataGenerator generates; every message and version was
compared with Kafka 4.2.1's own classes.
"""

from __future__ import annotations

from functools import lru_cache

from shmbroker.errors import ProtocolFault
from shmbroker.wire.decoder_source import DecoderSource
from shmbroker.wire.encoder_source import EncoderSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from shmbroker.wire.codec_source import FunctionSource
    from shmbroker.wire.primitives import Buffer

    Message = dict[str, Any]
    Decoder = Callable[..., tuple[Message, int]]
    Encoder = Callable[[Message], bytes]

REQUEST_ELEMENTS_MAX = 20_000
"""Elements of all arrays and tagged fields of a client's request: some 15 ms to read at most.

A broker holds some thousands of partitions, and Kafka lets one request make 10,000.
"""


def decode(name: str, version: int, buffer: Buffer, position: int = 0) -> tuple[Message, int]:
    """(message, position after it). The buffer's end is the end of what may be read."""
    return decoder(name, version)(buffer, position)


def decode_request(api_name: str, version: int, buffer: Buffer, position: int = 0) -> Message:
    """A client's request: ProtocolFault, too, for more elements than REQUEST_ELEMENTS_MAX."""
    return _request_decoder(api_name, version)(buffer, position, REQUEST_ELEMENTS_MAX)[0]


def decode_all(name: str, version: int, buffer: Buffer, position: int = 0) -> Message:
    """The message that fills the buffer from `position` on; ProtocolFault if bytes are left."""
    message, end_position = decoder(name, version)(buffer, position)
    if end_position != len(buffer):
        raise ProtocolFault(f"{name} v{version}: {len(buffer) - end_position} bytes left over")
    return message


def encode(name: str, version: int, message: Message) -> bytes:
    """The bytes of a message; ProtocolFault if a value does not fit its field or version."""
    return encoder(name, version)(message)


def encode_response(api_name: str, version: int, message: Message) -> bytes:
    """The bytes of an answer to a client; raises as `encode` does."""
    return _response_encoder(api_name, version)(message)


@lru_cache(None)
def _request_decoder(api_name: str, version: int) -> Decoder:
    return decoder(api_name + "Request", version)


@lru_cache(None)
def _response_encoder(api_name: str, version: int) -> Encoder:
    return encoder(api_name + "Response", version)


@lru_cache(None)
def decoder(name: str, version: int) -> Decoder:
    """`decode(buffer, position=0, elements=ANY_NUMBER) -> (message, end_position)` for one message
    and version; ProtocolFault for more elements, of arrays and tagged fields, than that.

    KeyError for a name that is not in the table, ProtocolFault for a version it doesn't have.
    """
    found: Decoder = _compile(DecoderSource(name, version))
    return found


@lru_cache(None)
def encoder(name: str, version: int) -> Encoder:
    """`encode(message) -> bytes` for one message and version; raises as `decoder` does."""
    found: Encoder = _compile(EncoderSource(name, version))
    return found


def _compile(source: FunctionSource) -> Any:
    """The function that a source defines."""
    namespace = source.namespace
    code = compile("\n".join(source.lines), f"<{source.title} {source.function}>", "exec")
    exec(code, namespace)
    return namespace[source.function]
