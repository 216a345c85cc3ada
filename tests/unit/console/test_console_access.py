"""Who may ask the console: by table, and with headers of every kind."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.console.access import TOKEN_HEADER, Access, HttpRequest

TOKEN = "secret-token"
HOST = {"host": "127.0.0.1:8080"}
WRITE = {
    **HOST,
    "origin": "http://127.0.0.1:8080",
    "content-type": "application/json; charset=utf-8",
    TOKEN_HEADER: TOKEN,
}
LOOKS_OURS = re.compile(r"(localhost|console\.example|[\d.]+|\[[^\]@/ ,]+\])(:\d+)?", re.ASCII)
"""What no Host that is answered differs from."""
READ_ONLY = Access(["console.example"], TOKEN, False)
WRITING = Access(["console.example"], TOKEN, True)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("10.1.2.3:80", True),
        ("localhost:9000", True),
        ("LocalHost", True),
        ("console.example:8080", True),
        ("", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:8080", False),
        ("localhost:8080, evil.example", False),
        ("localhost:80x", False),
        ("localhost:", False),
        ("[::1", False),
        ("[::1]x", False),
        ("127.0.0.1:8080@evil.example", False),
        ("localhost:8080/evil", False),
        ("::1", False),
    ],
)
def test_only_our_own_names_are_answered(host: str, is_ours: bool) -> None:
    refusal = READ_ONLY.refusal(HttpRequest("GET", "/", {}, {"host": host}))
    assert (refusal is None) == is_ours
    if refusal is not None:
        assert refusal.status == 403


@given(st.text(max_size=30) | st.text("localhst.:[]0127@/ ,ef", max_size=12))
def test_a_host_of_any_text_is_ours_or_refused(host: str) -> None:
    refusal = READ_ONLY.refusal(HttpRequest("GET", "/", {}, {"host": host}))
    if refusal is None:
        assert LOOKS_OURS.fullmatch(host.lower())
    else:
        assert refusal.status == 403


@pytest.mark.parametrize(
    ("site", "path", "status"),
    [
        ("same-origin", "/api/session", None),
        ("none", "/api/session", None),
        ("cross-site", "/api/session", 403),
        ("same-site", "/api/tail", 403),
        ("cross-site", "/", None),
    ],
)
def test_other_sites_may_only_lead_to_the_page(site: str, path: str, status: int | None) -> None:
    refusal = READ_ONLY.refusal(HttpRequest("GET", path, {}, {**HOST, "sec-fetch-site": site}))
    assert (refusal and refusal.status) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://127.0.0.1:8080", None), ("http://evil.example", 403), ("null", 403), ("", 403)],
)
def test_other_origins_may_not_ask(origin: str, status: int | None) -> None:
    refusal = READ_ONLY.refusal(HttpRequest("GET", "/api/search", {}, {**HOST, "origin": origin}))
    assert (refusal and refusal.status) == status


def test_a_change_comes_from_a_page() -> None:
    headers = {name: value for name, value in WRITE.items() if name != "origin"}
    refusal = WRITING.refusal(HttpRequest("POST", "/api/write/produce", {}, headers))
    assert refusal is not None and refusal.status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", ""])
def test_looking_is_by_get(method: str) -> None:
    refusal = WRITING.refusal(HttpRequest(method, "/api/session", {}, HOST))
    assert refusal is not None and refusal.status == 405


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, None),
        ({"origin": "https://127.0.0.1:8080"}, None),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({TOKEN_HEADER: ""}, 403),
        ({TOKEN_HEADER: TOKEN + "x"}, 403),
        ({TOKEN_HEADER: "ü\udcff"}, 403),
        ({"host": "evil.example", "origin": "http://evil.example"}, 403),
    ],
)
def test_a_change_comes_from_our_page_alone(changed: dict[str, str], status: int | None) -> None:
    request = HttpRequest("POST", "/api/write/produce", {}, WRITE | changed)
    refusal = WRITING.refusal(request)
    assert (refusal and refusal.status) == status


def test_nothing_is_changed_by_get_or_where_it_is_not_allowed() -> None:
    refusal = WRITING.refusal(HttpRequest("GET", "/api/write/produce", {}, WRITE))
    assert refusal is not None and refusal.status == 405
    refusal = READ_ONLY.refusal(HttpRequest("POST", "/api/write/produce", {}, WRITE))
    assert refusal is not None and refusal.status == 403 and "--console-writes" in refusal.reason
