"""Error messages that fit on the wire.

Messages quote what a client sent, and that alone may be as long as a string can be (32,767 bytes).
"""

MESSAGE_CHARACTERS_MAX = 4096
"""The most characters of a message: at four bytes each they fit twice over."""


def fitting(message: str | None) -> str | None:
    """The message, with its middle left out if it is too long."""
    if message is None or len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return f"{message[:2000]} … {message[-2000:]}"
