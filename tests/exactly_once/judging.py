"""What was read of a pipeline, against what went into it. Each function gives anomalies by name:

lost          of what went in, missing in what came out
repeated      came out more often than it went in
order         a key's values came out in another order
half          of a transaction some records, others not
aborted       a record of a transaction that its producer was told is aborted (G1a)
uncommitted   nothing of a transaction that its producer was told is committed
not-monotonic a reader was given an offset twice, or an earlier one later
compacted     the last record of a key is not that of what went in
changed       a reader that was there all the time saw something else than one that came later
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from tests.exactly_once.records import Place, Record
from tests.exactly_once.topics import AUDIT, BUCKET_COUNT, BUCKETS, IN, LATEST, OUT, SUMS

Anomalies = dict[str, list[object]]


def by_key(seen: Mapping[Place, list[Record]], topic: str) -> dict[str, list[str]]:
    """{key: its values in order}"""
    found: dict[str, list[str]] = defaultdict(list)
    for (name, _), records in seen.items():
        if name == topic:
            for _, key, value in records:
                found[key].append(value)
    return found


def compare(wanted: Mapping[str, list[str]], found: Mapping[str, list[str]]) -> Anomalies:
    """The same values for each key, in the same order."""
    anomalies: Anomalies = defaultdict(list)
    for key in sorted({*wanted, *found}):
        want, have = wanted.get(key, []), found.get(key, [])
        if want == have:
            continue
        missing, more = Counter(want) - Counter(have), Counter(have) - Counter(want)
        for name, counter in (("lost", missing), ("repeated", more)):
            anomalies[name] += [(key, value) for value in counter.elements()]
        if not missing and not more:
            at = next(
                i for i, (one, other) in enumerate(zip(want, have, strict=True)) if one != other
            )
            anomalies["order"].append((key, want[at], have[at]))
    return anomalies


def of_readers(
    live: Mapping[Place, list[Record]], later: Mapping[Place, list[Record]]
) -> Anomalies:
    """One that read all the time beside one that came when all was over."""
    anomalies: Anomalies = defaultdict(list)
    for place, records in live.items():
        offsets = [offset for offset, _, _ in records]
        anomalies["not-monotonic"] += [
            (place, one, other) for one, other in pairwise(offsets) if other <= one
        ]
        if place[0] == LATEST:  # compacted: some of it
            anomalies["changed"] += [(place, one) for one in set(later[place]) - set(records)]
        elif records != later[place]:
            different = set(records) ^ set(later[place])
            anomalies["changed"].append((place, len(different), min(different, default=None)))
    return anomalies


def of_pipeline(
    fed: Mapping[Place, list[Record]],
    seen: Mapping[Place, list[Record]],
    committed: Iterable[str],
    aborted: Iterable[str],
) -> Anomalies:
    """IN beside OUT, AUDIT and LATEST, as `confluent_pipeline` says what they hold."""
    values = {
        key: [value.split(" ")[0] for value in found] for key, found in by_key(seen, OUT).items()
    }
    anomalies = compare(by_key(fed, IN), values)
    newest = by_key(seen, LATEST)
    anomalies["compacted"] += [
        (key, found[-1:], newest[key][-1:])
        for key, found in by_key(fed, IN).items()
        if found[-1:] != newest[key][-1:]
    ]
    totals: Counter[str] = Counter()
    for place, records in seen.items():
        if place[0] != OUT:
            continue
        parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for _, _, value in records:
            _, transaction, index, count = value.split(" ")
            parts[transaction].append((int(index), int(count)))
            totals[transaction] += 1
        for transaction, found in parts.items():
            if [index for index, _ in found] != list(range(found[0][1])):
                anomalies["half"].append((place, transaction, found))
    audits = [value.split(" ") for found in by_key(seen, AUDIT).values() for value in found]
    audited = Counter({transaction: int(total) for transaction, total in audits})
    if len(audits) != len(audited):
        anomalies["repeated"].append("audit")
    anomalies["half"] += [
        (one, totals[one], audited[one])
        for one in {*totals, *audited}
        if totals[one] != audited[one]
    ]
    anomalies["aborted"] += sorted(set(aborted) & {*totals, *audited})
    anomalies["uncommitted"] += sorted(set(committed) - set(totals))
    return anomalies


def of_streams(fed: Mapping[Place, list[Record]], seen: Mapping[Place, list[Record]]) -> Anomalies:
    """IN beside OUT, SUMS and BUCKETS, as `StreamsPipeline` says what they hold."""
    values = by_key(fed, IN)
    sums = {
        key: [f"{count} {value}" for count, value in enumerate(found, 1)]
        for key, found in values.items()
    }
    totals: Counter[str] = Counter()
    for key, found in values.items():
        totals[f"b{int(key[1:]) % BUCKET_COUNT}"] += len(found)
    buckets = {
        key: [str(number) for number in range(1, total + 1)] for key, total in totals.items()
    }
    anomalies: Anomalies = defaultdict(list)
    for topic, wanted in ((OUT, values), (SUMS, sums), (BUCKETS, buckets)):
        for name, cases in compare(wanted, by_key(seen, topic)).items():
            anomalies[name] += [(topic, case) for case in cases]
    return anomalies
