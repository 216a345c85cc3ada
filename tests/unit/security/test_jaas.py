"""What `sasl.jaas.config` says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmbroker.security.sasl import jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (f'{MODULE} required user_alice="a" user_bob="b c";', {"alice": "a", "bob": "b c"}),
        (f"{MODULE} REQUIRED user_alice=plain ;", {"alice": "plain"}),
        (f'{MODULE} required username="x" password="y" user_x = "y";\n', {"x": "y"}),
        (rf'{MODULE} required user_a="q\"uo\\te";', {"a": 'q"uo\\te'}),
        (f"{MODULE} required user_a='single';", {"a": "single"}),
        (f'{MODULE} required user_a="a;b=c";', {"a": "a;b=c"}),
        (f"{MODULE} required;", {}),
    ],
)
def test_users_are_options(text: str, users: dict[str, str]) -> None:
    assert jaas.parse(text).users == users


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no login module"),
        (MODULE, "no login module"),
        (f'{MODULE} user_alice="secret";', "second word"),
        (f'{MODULE} required user_alice="secret"', "semicolon"),
        (f'{MODULE} required user_alice="secret;', "quote"),
        (f'{MODULE} required user_alice "secret" x;', "option 1"),
        (f'{MODULE} required user_alice="secret"; Other required;', "more than one"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        jaas.parse(text)
    assert "secret" not in str(refusal.value)


def test_options_are_not_printed() -> None:
    assert "secret" not in repr(jaas.parse(f'{MODULE} required user_alice="secret";'))


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        jaas.parse(text)
    except ValueError:
        pass


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_password_can_be_quoted(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert jaas.parse(f'{MODULE} required user_a="{quoted}";').users == {"a": password}
