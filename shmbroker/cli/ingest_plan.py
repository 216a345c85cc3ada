"""What the options of `shmbroker ingest` ask for: which go together, and the plan that they make.

A plan has a value for each of its fields; beside it goes which of them were named, as an ingest
that has begun keeps the others. Options of the source are passed on, but for those that the
command sets itself. The cluster is asked nothing here; of files, only that of --schema is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shmbroker.cli.client import TargetCluster, pairs
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.words import parse_moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.spark.ingest.plan import IngestPlan
    from shmbroker.spark.ingest.prepare import AskedIngest

_OWN_OPTIONS = {
    "subscribe": "TOPIC names what is read",
    "subscribepattern": "TOPIC names what is read",
    "assign": "TOPIC names what is read",
    "emit": "an ingest needs it for itself",
    "kafka.bootstrap.servers": "--bootstrap-server does",
    "profile": "--profile does",
    "startingoffsets": "--from does",
    "startingoffsetsbytimestamp": "--from does",
    "startingoffsetsbytimestampstrategy": "--from does",
    "startingtimestamp": "--from does",
    "partialoffsets": "--from does",
}
"""Options of the source, lower case: -o can't set them, as the checkpoint would not know."""

_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
"""So begin options that -o can't set either: all users of a host see command lines, and whoever
writes dead letters needs them, too."""

_ISOLATION = "kafka.isolation.level"


def check_usage(cluster: TargetCluster, given: dict[str, Any]) -> None:
    """A usage error for options that don't go together."""
    if given["infer"] and given["schema"]:
        raise click.UsageError("--infer finds out what --schema says: give one of them.")
    if given["dead_letter"] and given["skips_bad"] is not None:
        raise click.UsageError("--dead-letter, --skip-bad and --fail-on-bad: give one of them.")
    if given["replay"] and given["skips_bad"] is not None:
        raise click.UsageError(
            "--replay reads dead letters, and those that are still bad stay where they are: leave "
            "--skip-bad and --fail-on-bad out."
        )
    if cluster.settings:
        raise click.UsageError("-X is for librdkafka; here -o sets options of Spark's source.")
    for name in pairs(given["source_options"], "-o"):
        why = _OWN_OPTIONS.get(name.lower())
        if name.lower().startswith(_SECURITY):
            why = "TLS, user and password are those of --profile"
        if why:
            raise click.UsageError(f"-o can't set {name}: {why}.")


def asked_ingest(
    cluster: TargetCluster, topic: str, topics: tuple[str, ...], given: dict[str, Any]
) -> AskedIngest:
    """What the command line asks for one of its topics."""
    from shmbroker.spark.ingest.files import local_path
    from shmbroker.spark.ingest.prepare import AskedIngest

    plan, fields = _plan(cluster, topic, given)
    if given["checkpoint"]:
        directory = local_path(given["checkpoint"])
        plan = plan._replace(checkpoint=directory if len(topics) == 1 else f"{directory}/{topic}")
    source = cluster.spark_options() | {
        "subscribe": topic,
        "maxBytesPerTrigger": str(given["batch_size"]),
        _ISOLATION: "read_committed",
    }
    more = pairs(given["source_options"], "-o")
    if _ISOLATION in {name.lower() for name in more}:
        del source[_ISOLATION]
    if not {name.lower() for name in more} & {"groupidprefix", "kafka.group.id"}:
        source["groupIdPrefix"] = f"ingest-{topic}"
    return AskedIngest(
        plan,
        fields,
        source | more,
        _start(given["start"]),
        given["infer"],
        given["continues"],
        given["appends"],
    )


def _start(text: str | None) -> str | None:
    """earliest, latest, or the milliseconds of a moment."""
    if text in (None, "earliest", "latest"):
        return text
    try:
        return str(parse_moment(text))
    except ValueError as error:
        raise click.UsageError(f"--from takes earliest, latest or a time: {error}.") from None


def _plan(
    cluster: TargetCluster, topic: str, given: dict[str, Any]
) -> tuple[IngestPlan, list[str]]:
    """What was asked for, and which fields of it were named."""
    from shmbroker.spark.ingest.files import local_path
    from shmbroker.spark.ingest.plan import IngestPlan

    text, kind = _schema(given)
    delimiter = given["delimiter"]
    if delimiter is not None and len(delimiter.encode()) != 1:
        raise click.UsageError(f"--delimiter takes one character, not {delimiter!r}.")
    fields = {
        "path": local_path(given["path"]),
        "format": given["file_format"],
        "values": kind,
        "schema": text or None,
        "delimiter": delimiter,
        "record_columns": _names(given["record_columns"]),
        "partition_by": _names(given["partition_by"]),
        "compression": given["compression"],
        "target_bytes": given["target_size"],
        "bootstrap_servers": cluster.servers,
        "profile": cluster.profile.name if cluster.profile else "",
    }
    if given["dead_letter"] and not given["replay"]:
        fields |= dead_letter_fields(given["dead_letter"])
    elif given["skips_bad"] is not None:
        fields |= dead_letter_fields("") | {"skips_bad": given["skips_bad"]}
    asked = {name: value for name, value in fields.items() if value is not None}
    default = "json" if text or given["infer"] else "raw"
    return IngestPlan(ingest_id="", topic=topic, **{"values": default, **asked}), list(asked)


def _schema(given: dict[str, Any]) -> tuple[str, str | None]:
    """The text of --schema, and what values are, if that is said."""
    text, kind = given["schema"] or "", given["values"]
    if text.startswith("@") or text.endswith(".avsc"):
        name = text.removeprefix("@")
        try:
            text = Path(name).read_text()
        except UnicodeDecodeError:
            raise CommandFault(f"{name}: no text") from None
        if kind is None and name.endswith(".avsc"):
            kind = "avro"
    if kind == "raw" and (text or given["infer"]):
        raise click.UsageError("--values raw takes no --schema: values stay as they are.")
    if kind is not None and "avro" in kind and given["infer"]:
        raise click.UsageError("Avro can't be inferred: give its schema, --schema FILE.avsc.")
    return text, kind


def dead_letter_fields(place: str) -> dict[str, Any]:
    """The fields of a plan that say where bad records go."""
    from shmbroker.spark.ingest.files import local_path

    is_path = "/" in place or place.startswith(("~", "."))
    return {
        "dead_letter_topic": "" if is_path else place,
        "dead_letter_path": local_path(place) if is_path else "",
        "skips_bad": False,
    }


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
