"""Reads what answers at the address of a cluster, as a client: nothing is changed there.

What brokers refuse to tell, and what a broker that is not ours does not have, is left as not known.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import unquote, urlsplit

from shmbroker import clock
from shmbroker.cli.client import TargetCluster
from shmbroker.cli.doctor.facts import ClusterFacts, or_none
from shmbroker.client.addresses import addresses_text
from shmbroker.errors import Fault
from shmbroker.security.certificate import not_after
from shmbroker.settings.listeners import parse as parse_listeners

ADDRESS_S = 2.0
RESOURCE_BROKER = 4
STORE = "shmbroker.tier.store"
LONGEST_TRANSACTION = "transaction.max.timeout.ms"
LONGEST_TRANSACTION_MS = 900_000
"""Kafka's default, where nobody told another."""
LATE_MS = 60_000
"""More than a coordinator takes to end what is over its time."""
ASKED_MOST = 5_000
"""Where there are more partitions, no broker is asked for producers."""
SETTINGS = (
    STORE,
    "shmbroker.disk.reserve.bytes",
    "shmbroker.watchdog.kill.ms",
    LONGEST_TRANSACTION,
    "listeners",
    "listener.security.protocol.map",
)
EVERYWHERE = ("", "0.0.0.0", "::")


def cluster(asked: TargetCluster) -> ClusterFacts:
    """What answers at the address, as `shmbroker status` sees it."""
    from shmbroker.cli import probe
    from shmbroker.cli.status import gather as status
    from shmbroker.client.faults import DeniedFault

    addresses = asked.addresses()
    found = ClusterFacts(address=asked.servers, is_local=all(map(_is_local, addresses)))
    is_tls = addresses.security.is_encrypted
    refusals = [probe.refusal_of(each, is_tls, ADDRESS_S) for each in addresses]
    if all(refusals):
        refusal = next(each for each in refusals if each)
        found.refusal = refusal.text if refusal.is_reached else f"is not reached: {refusal.text}"
        return found
    try:
        found.report = status(asked)
    except Fault as fault:
        found.refusal, found.is_denied = str(fault), isinstance(fault, DeniedFault)
        return found
    told = [(str(row["host"]), int(row["port"])) for row in found.report["brokers"]]
    found.unreachable = [
        addresses_text([each]) for each in told if probe.refusal_of(each, is_tls, ADDRESS_S)
    ]
    found.settings = _settings(addresses, found.report["brokers"])
    longest_ms = int(found.settings.get(LONGEST_TRANSACTION, LONGEST_TRANSACTION_MS))
    look_at_transactions(found, addresses, longest_ms, clock.now_ms())
    _look_at_store(found)
    found.certificates = certificates(
        found.settings.get("listeners", ""),
        found.settings.get("listener.security.protocol.map", ""),
        addresses[0][0],
        clock.now_ms(),
    )
    return found


def certificates(told: str, protocols: str, host: str, now_ms: int) -> dict[str, float | None]:
    """How many days the certificate still holds that each listener with TLS shows, by the
    listener's name.

    told, protocols: the settings `listeners` and `listener.security.protocol.map`. host: where
    those answer that listen on every interface.
    """
    if not told or not protocols:
        return {}
    listeners = parse_listeners(told.split(","), (), protocols.split(","), 1)
    return {
        one.name: or_none(
            partial(_days, host if one.host in EVERYWHERE else one.host, one.port, now_ms)
        )
        for one in listeners
        if one.has_tls
    }


def _days(host: str, port: int, now_ms: int) -> float:
    """The days that the certificate at an address still holds, whatever it is worth: only its end
    counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), ADDRESS_S) as plain,
        context.wrap_socket(plain) as connected,
    ):
        end = not_after(connected.getpeercert(binary_form=True) or b"")
    return (end.timestamp() - now_ms / 1000) / 86400


def _settings(
    addresses: Sequence[tuple[str, int]], brokers: Sequence[Mapping[str, object]]
) -> dict[str, str]:
    """The settings of the first broker that checks look at; none of a broker that is not ours."""
    from shmbroker.client import admin
    from shmbroker.client.faults import ClusterFault
    from shmbroker.wire.api_keys import DESCRIBE_CONFIGS

    resource = {
        "resource_type": RESOURCE_BROKER,
        "resource_name": str(brokers[0]["id"]),
        "configuration_keys": list(SETTINGS),
    }
    try:
        answer = admin.ask(addresses, DESCRIBE_CONFIGS, {"resources": [resource]})
    except ClusterFault:
        return {}
    return {
        row["name"]: row["value"]
        for result in answer["results"]
        for row in result["configs"]
        if row["value"] is not None
    }


def look_at_transactions(
    found: ClusterFacts, addresses: Sequence[tuple[str, int]], longest_ms: int, now_ms: int
) -> None:
    """Look for transactions that hang or outlive their time-out; nothing where brokers can't say.

    longest_ms: `transaction.max.timeout.ms`. Topics with a partition that nobody leads are left
    out: of them nobody can say.
    """
    from shmbroker.client.faults import ClusterFault
    from shmbroker.client.transactions import UNDER_WAY, TransactionsAdmin

    try:
        with TransactionsAdmin(addresses) as transactions:
            late = []
            for row in transactions.listed(UNDER_WAY):
                known = transactions.described(row.transactional_id)
                if known is not None and 0 <= known.start_ms < now_ms - known.timeout_ms - LATE_MS:
                    late.append(row.transactional_id)
            found.late_transactions = late
            if found.report["partitions"] <= ASKED_MOST:
                offline = {name.rpartition("-")[0] for name in found.report["offline"]}
                names = dict.fromkeys(set(transactions.topics()) - offline)
                hanging = transactions.hanging(names, now_ms - longest_ms)
                found.hanging = [(one.topic, one.partition, one.start_offset) for one in hanging]
    except ClusterFault:
        return


def _look_at_store(found: ClusterFacts) -> None:
    parts = urlsplit(found.settings.get(STORE, ""))
    if found.is_local and parts.scheme == "file":
        path = unquote(parts.path)
        state = or_none(lambda: os.stat(path))
        found.store_path, found.store_is_there = path, state is not None
        found.store_device = state.st_dev if state is not None else None


def _is_local(address: tuple[str, int]) -> bool:
    return address[0].startswith(("127.", "/")) or address[0] in ("localhost", "::1")
