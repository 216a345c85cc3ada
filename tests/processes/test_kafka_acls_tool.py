"""kafka-acls prints the same for our broker as for Kafka's, for a super user and for who has no
rights.

KAFKA_ORACLE_ACLS=PORT names a new Kafka, as `acl_expectations` describes it; KAFKA_TOOL is a
command that runs a class of its tools.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.processes.acl_expectations import our_side
from tests.processes.acl_side import ADMIN, HERE, AclSide, password_of
from tests.processes.test_kafka_tools import run

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        "KAFKA_ORACLE_ACLS" not in os.environ or "KAFKA_TOOL" not in os.environ,
        reason="no Apache Kafka with an authorizer and its tools to compare with",
    ),
    pytest.mark.timeout(1200),
]

ACLS = "org.apache.kafka.tools.AclCommand --bootstrap-server {b} --command-config {f}"
AS_ADMIN = ACLS + "admin "
AS_NOBODY = ACLS + "nobody "

SCRIPTS = {
    "adding and listing": [
        AS_ADMIN + "--add --allow-principal User:eve --producer --topic {t}a --idempotent",
        AS_ADMIN + "--add --allow-principal User:eve --consumer --topic {t}a --group {t}g",
        AS_ADMIN
        + "--add --allow-principal User:eve --producer --transactional-id {t}x --topic {t}a",
        AS_ADMIN + "--add --deny-principal User:eve --deny-host 10.0.0.1 --operation Read "
        "--topic {t}a",
        AS_ADMIN + "--add --allow-principal User:* --operation All --topic {t}p "
        "--resource-pattern-type prefixed",
        AS_ADMIN + "--add --allow-principal 'User:CN=eve,OU=x' --operation DescribeTokens "
        "--user-principal User:{t}u",
        AS_ADMIN + "--list --topic {t}a",
        AS_ADMIN + "--list --principal User:eve --topic {t}a",
        AS_ADMIN + "--list --topic {t}prefixed --resource-pattern-type match",
        AS_ADMIN + "--list --topic {t}p --resource-pattern-type prefixed",
        AS_ADMIN + "--list --topic {t}p",
        AS_ADMIN + "--list --group {t}g --transactional-id {t}x",
        AS_ADMIN + "--list --user-principal User:{t}u",
    ],
    "taking away": [
        AS_ADMIN + "--add --allow-principal User:eve --allow-principal User:bob --operation Read "
        "--operation Write --topic {t}r --group {t}rg",
        AS_ADMIN + "--remove --allow-principal User:eve --operation Read --topic {t}r --force",
        AS_ADMIN + "--list --topic {t}r",
        AS_ADMIN + "--remove --topic {t}r --force",
        AS_ADMIN + "--list --topic {t}r",
        AS_ADMIN + "--list --group {t}rg",
        AS_ADMIN + "--remove --group {t}rg --force",
        AS_ADMIN + "--remove --topic {t}nothing --force",
    ],
    "what is no ACL": [
        AS_ADMIN + "--add --allow-principal eve --operation Read --topic {t}b",
        AS_ADMIN + "--add --allow-principal User:eve --operation Create --group {t}b",
        AS_ADMIN + "--add --allow-principal User:eve --operation Read --topic {t}b "
        "--resource-pattern-type any",
        AS_ADMIN + "--add --allow-principal User:eve --operation Sing --topic {t}b",
        AS_ADMIN + "--add --allow-principal User:eve --allow-host '' --operation Read --topic {t}b",
        AS_ADMIN + "--add --allow-principal User:eve --operation Alter --cluster other",
        AS_ADMIN + "--list --topic {t}b",
    ],
    "without the right": [
        AS_NOBODY + "--list --topic {t}a",
        AS_NOBODY + "--add --allow-principal User:nobody --operation All --topic {t}n",
        AS_NOBODY + "--remove --topic {t}a --force",
        AS_ADMIN + "--list --topic {t}n",
    ],
}


def shown(text: str) -> list[str]:
    """Lines, as Kafka's order is a hash map's. What it says of a right that is missing shows a Java
    object."""
    text = re.sub(r"Request Request\(.* permission\.", "Cluster authorization failed.", text)
    return sorted(text.splitlines())


@pytest.fixture(scope="module")
def ours() -> Iterator[AclSide]:
    with our_side() as side:
        yield side


@pytest.mark.parametrize("name", SCRIPTS)
def test_tools_print_the_same(ours: AclSide, tmp_path: Path, name: str) -> None:
    for user in (ADMIN, "nobody"):
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        (tmp_path / user).write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
            f'{module} required username="{user}" password="{password_of(user)}";\n'
        )
    prefix = f"acls-{os.getpid()}-"
    port = int(os.environ["KAFKA_ORACLE_ACLS"]) + 1
    with ThreadPoolExecutor() as pool:
        printed = pool.map(
            lambda address: run(SCRIPTS[name], address, prefix, f"{tmp_path}/"),
            (f"{HERE}:{port}", ours.sasl_address),
        )
        theirs, here = printed
    different = [
        f"Kafka:\n{their}\nhere:\n{our}"
        for their, our in zip(theirs, here, strict=True)
        if shown(their) != shown(our)
    ]
    assert not different, "\n".join(different)
