"""`ssl.principal.mapping.rules`: results and refusals are those of Kafka's `SslPrincipalMapper`."""

import pytest

from shmbroker.security.principal_rules import PrincipalRules

NAME = "CN=kafka-1.Example,OU=Servers,O=Acme\\, Inc.,L=Berlin,ST=BE,C=DE"

RESULTS = {
    "DEFAULT": NAME,
    "": None,
    "RULE:^CN=(.*?),OU=Servers.*$/$1/": "kafka-1.Example",
    "RULE:^CN=(.*?),OU=Servers.*$/$1/L": "kafka-1.example",
    "RULE:^CN=(.*?),OU=Servers.*$/$1/U, DEFAULT": "KAFKA-1.EXAMPLE",
    "RULE:^CN=(.*?),OU=Users.*$/$1/L,RULE:^.*OU=(.*?),.*$/$1@x/,DEFAULT": "Servers@x",
    "RULE:^CN=(.*?),OU=Users.*$/$1/": None,
    "RULE:^CN=(.*?),OU=Users.*$/$1/,DEFAULT": NAME,
    "RULE:.*/x/": "xx",
    "RULE:Servers/x/": None,
    "RULE:^CN=([^.]*)\\.(.*?),.*$/$2\\/$1/": "Example/kafka-1",
    "RULE:CN=(.*?),.*/\\$1/": "$1",
    "RULE:CN=(.*?),.*/$2/": "$2",
    "RULE:CN=(.*?),.*/$12/": "kafka-1.Example2",
    "RULE:CN=(.*?),.*/$01/": "kafka-1.Example",
    "RULE:CN=(.*?),.*/a$0b/": f"a{NAME}b",
    "RULE:(?<n>CN=.*?),.*/${n}/": "CN=kafka-1.Example",
    "RULE:CN=(.*?),.*/a\\b\\\\c/": "ab\\c",
    "RULE:CN=(x)?(.*?),.*/[$1]$2/": "[]kafka-1.Example",
    " RULE:CN=(.*?),.*/$1/L , DEFAULT ": "kafka-1.example",
    "RULE://,DEFAULT": NAME,
}

REFUSALS = {
    "RULE:a/b": "Invalid rule: `RULE:a/b`, unmatched substring: `RULE:a/b`",
    "RULE:a/b/X": "Invalid rule: `RULE:a/b/X`, unmatched substring: `X`",
    "RULE:a/b/LU": "Invalid rule: `RULE:a/b/LU`, unmatched substring: `U`",
    "RULE:a/b/L;DEFAULT": "Invalid rule: `RULE:a/b/L;DEFAULT`, unmatched substring: `;DEFAULT`",
    "default": "Invalid rule: `default`, unmatched substring: `default`",
    "RULE:///": "Invalid rule: `RULE:///`, unmatched substring: `/`",
    "DEFAULTX": "Invalid rule: `DEFAULTX`, unmatched substring: `X`",
    "A, DEFAULT": "Invalid rule: `A`, unmatched substring: `A`",
    "RULE:a/b/ DEFAULT": "Invalid rule: `RULE:a/b/ DEFAULT`, unmatched substring: ` DEFAULT`",
    # Kafka takes these, and fails when a client comes; or they are Java's alone.
    "RULE:[/b/": "its pattern can't be used",
    "RULE:\\p{L}+/x/": "its pattern can't be used",
    "RULE:CN=.*/$1/": "no group 1 in its pattern",
    "RULE:CN=(.*)/$x/": "illegal group reference",
    "RULE:CN=.*/a$/": "illegal group reference",
    "RULE:CN=(.*)/${x}/": "no group x in its pattern",
}


@pytest.mark.parametrize("rules", RESULTS)
def test_the_first_rule_that_fits_makes_the_name(rules: str) -> None:
    assert PrincipalRules(rules).user(NAME) == RESULTS[rules]


@pytest.mark.parametrize("rules", REFUSALS)
def test_rules_that_can_not_be_are_refused(rules: str) -> None:
    with pytest.raises(ValueError) as refusal:
        PrincipalRules(rules)
    assert REFUSALS[rules] in str(refusal.value)
