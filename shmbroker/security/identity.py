"""The client that asks: what a gateway has found out about it, and other processes trust.

It travels beside a request (`ipc.operation_layout`, IDENTITY), never in what the client wrote.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.security.acls import ANONYMOUS


class Identity(NamedTuple):
    """The client of one connection."""

    principal: str
    """Such as User:alice."""
    host: str
    """His address, without its port; "" on a socket of this host."""
    listener: str
    """Name of the listener that he came by; "" for the control socket."""
    is_by_token: bool = False
    """A delegation token was what he showed (KIP-48)."""

    @property
    def may_have_tokens(self) -> bool:
        """Whether delegation tokens are his to ask for: he has shown who he is, and not by one."""
        return not (self.is_by_token or self.principal in ("", ANONYMOUS))


OF_FAMILY = Identity("", "", "")
"""A process of the family asks for itself."""
