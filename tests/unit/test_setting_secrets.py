"""References in settings to where a secret lies."""

from pathlib import Path

import pytest

from shmbroker.errors import ConfigFault
from shmbroker.settings.secrets import is_reference, resolved


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "all.properties").write_text("# passwords\nalice=one two\nbob = b:c\n")
    (tmp_path / "alice").write_text("in a file\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", "plain"),
        ("${file:{place}/all.properties:alice}", "one two"),
        ("<${file:{place}/all.properties:bob}>", "<b:c>"),
        ("${dir:{place}:alice}", "in a file"),
        ("${env:PASSWORD}", "of the environment"),
        ("${credential:alice}", "in a file"),
        ("${env:PASSWORD}${env:PASSWORD}", "of the environment" * 2),
        ("${other:x:y} $x ${", "${other:x:y} $x ${"),
    ],
)
def test_a_reference_gives_way_to_what_it_leads_to(place: Path, text: str, found: str) -> None:
    env = {"PASSWORD": "of the environment", "CREDENTIALS_DIRECTORY": str(place)}
    assert resolved(text.replace("{place}", str(place)), env, "x") == found


@pytest.mark.parametrize(
    "text",
    [
        "${file:{place}/all.properties:carol}",
        "${file:{place}/none.properties:carol}",
        "${dir:{place}:../alice}",
        "${dir:{place}:..}",
        "${dir:{place}:}",
        "${env:NOTHING}",
        "${credential:alice}",
    ],
)
def test_one_that_leads_nowhere_is_refused(place: Path, text: str) -> None:
    with pytest.raises(ConfigFault, match=r"the\.setting"):
        resolved(text.replace("{place}", str(place)), {}, "the.setting")


def test_what_a_file_holds_is_not_told(place: Path) -> None:
    (place / "odd.properties").write_text("this is the secret\n")
    with pytest.raises(ConfigFault) as fault:
        resolved(f"${{file:{place}/odd.properties:x}}", {}, "the.setting")
    assert "secret" not in str(fault.value)


def test_all_of_a_value_may_be_one() -> None:
    assert is_reference(" ${env:X} ")
    assert not is_reference("${env:X};")
