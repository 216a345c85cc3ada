"""The rules of access: every request is judged here before it does anything. Pure.

The console has no login: whoever reaches its address may ask. What is kept out are other pages in
the browser of somebody who may:

   a page of another site            asks across origins: its browser says so (Sec-Fetch-Site, or
                                     Origin), and shows it no answer
   one that has rebound its name     asks as if it were ours, but its name is in Host. An address
   to our address                    can't be rebound, so those are taken, `localhost`, and the name
                                     that the console was told to listen on
   a form or script that writes      has no token, which only our page can read, and another Origin

A login would be one more rule here: `Access.refusal` sees every request and all of its headers.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import NamedTuple

API = "/api/"
WRITES = "/api/write/"
TOKEN_HEADER = "x-shmbroker-token"
_OWN_SITE = ("", "same-origin", "none")
"""Sec-Fetch-Site of our page, of an address that was typed in, and of what is no browser."""


class HttpRequest(NamedTuple):
    """What a client asks."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Headers by their names in small letters; of several with one name, all, with commas
    between."""
    body: bytes = b""


class HttpRefusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    reason: str


class Access:
    """The rules for one console."""

    def __init__(self, names: Collection[str], token: str, may_write: bool) -> None:
        """names: hosts that it is reached by, beside addresses and localhost."""
        self.names = {"localhost", *(name.lower() for name in names)}
        self.token = token
        self.may_write = may_write

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Why a request is refused; None if it may go on."""
        headers = request.headers
        if not self._is_our_host(headers.get("host", "")):
            return HttpRefusal(403, "this console is not reached by that name: use its address")
        if request.path.startswith(API) and not _is_own_site(headers):
            return HttpRefusal(403, "another site asks")
        if request.path.startswith(WRITES):
            return self._write_refusal(request)
        if request.method not in ("GET", "HEAD"):
            return HttpRefusal(405, "only GET and HEAD")
        return None

    def _write_refusal(self, request: HttpRequest) -> HttpRefusal | None:
        headers = request.headers
        if not self.may_write:
            return HttpRefusal(403, "nothing can be changed here: serve --console-writes allows it")
        if request.method != "POST":
            return HttpRefusal(405, "only POST")
        if "origin" not in headers:
            return HttpRefusal(403, "this comes from no page")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return HttpRefusal(415, "only application/json")
        given = headers.get(TOKEN_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.token.encode()):
            return HttpRefusal(403, "this page is older than the console: load it again")
        return None

    def _is_our_host(self, text: str) -> bool:
        host = text.lower()
        if host.startswith("["):
            host, bracket, port = host[1:].partition("]")
            if not bracket or (port and not _is_port(port)):
                return False
        elif ":" in host:
            host, _, port = host.partition(":")
            if not _is_port(":" + port):
                return False
        if host in self.names:
            return True
        try:
            ip_address(host)
        except ValueError:
            return False
        return True


def _is_own_site(headers: Mapping[str, str]) -> bool:
    origin, host = headers.get("origin"), headers["host"]
    is_own = origin is None or origin.partition("://")[2] == host
    return is_own and headers.get("sec-fetch-site", "") in _OWN_SITE


def _is_port(text: str) -> bool:
    return text[0] == ":" and text[1:].isascii() and text[1:].isdigit()
