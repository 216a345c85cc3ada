"""Java properties: what java.util.Properties.load makes of the same texts."""

import pytest

from shmbroker.settings.java_properties import entries, natural_lines, properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 \n", {"a": "1 "}),
        ("a:1\r\nb 2\rc\t3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a\n", {"a": ""}),
        ("=1\n", {"": "1"}),
        ("a==1\nb: =2\nc = : 3\n", {"a": "=1", "b": "=2", "c": ": 3"}),
        ("a=b=c:d\n", {"a": "b=c:d"}),
        ("# a=1\n  ! b=2\n\n \t\n c=3\n", {"c": "3"}),
        ("a=1#2\n", {"a": "1#2"}),
        ("a=1\na=2\n", {"a": "2"}),
        ("a=1,\\\n   2,\\\r\n\t3\n", {"a": "1,2,3"}),
        ("a=1,\\\n\nb=2\n", {"a": "1,", "b": "2"}),
        ("a=1,\\\n# 2\n", {"a": "1,# 2"}),
        ("\\\n# a=1\nb=2\n", {"b": "2"}),
        ("a=1\nb=2\\", {"a": "1", "b": "2"}),
        ("a=x\\\\\nb=2\n", {"a": "x\\", "b": "2"}),
        ("a=x\\\\\\\nb=2\n", {"a": "x\\b=2"}),
        ("a\\:b\\=c\\ d=\\:\\=\\#\\!\n", {"a:b=c d": ":=#!"}),
        ("a=\\t\\n\\r\\f\\q\\b\n", {"a": "\t\n\r\fqb"}),
        ("a=\\u00e4\\u00DF\\u0009\n", {"a": "\u00e4\u00df\t"}),
        ("a\\u003d=1\n", {"a=": "1"}),
        ("a=\\ud83d\\ude00\n", {"a": "\U0001f600"}),
        ("a=\\\\u00e4\n", {"a": "\\u00e4"}),
        ("a=1\x0b2\x853\u20284\n", {"a": "1\x0b2\x853\u20284"}),
        ("\f a\f=\f1\n", {"a": "1"}),
    ],
)
def test_texts(text: str, found: dict[str, str]) -> None:
    assert properties(text) == found


@pytest.mark.parametrize("value", ["\\u", "\\u12", "\\u12g4", "\\ud83d"])
def test_characters_that_are_none_are_refused_with_their_line(value: str) -> None:
    with pytest.raises(ValueError, match="line 3: "):
        properties(f"a=1\n\nb=\\\n{value}\n")


def test_entries_say_which_lines_they_are_of() -> None:
    lines = natural_lines("# a\na=1\n\nb=2,\\\n  3\\\n")
    assert list(entries(lines)) == [("a", "1", 1, 2), ("b", "2,3", 3, 5)]
