"""Talks to a door, for as long as it is asked: by atheris where it is installed, which looks at
what is reached, else by chance. `scripts/fuzz_door` calls it.

Even seeds talk with TLS. What fails is kept in the corpus, as `failed-…`, and ends the run with
status 1.
"""

import argparse
import hashlib
import importlib.util
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from shmbroker import clock

CORPUS = Path(__file__).parent / "corpus" / "door"
INSTRUMENTED = ["shmbroker.security.sasl", "shmbroker.gateway.sasl_door", "shmbroker.wire.frame"]
TALK_BYTES_MAX = 4096


def keep(talk: bytes) -> Path:
    """Where a talk that fails is kept, for the suite to hold it again."""
    path = CORPUS / f"failed-{hashlib.sha256(talk).hexdigest()[:12]}"
    path.write_bytes(talk)
    return path


def changed(chance: random.Random, talks: list[bytes]) -> bytes:
    """One talk made of others."""
    talk = bytearray(chance.choice(talks))
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(talk) + 1)
        how = chance.randrange(4)
        if how == 0:
            talk[at : at + chance.randrange(4)] = chance.randbytes(chance.randrange(4))
        elif how == 1:
            del talk[at : at + chance.randrange(40)]
        elif how == 2:
            other = chance.choice(talks)
            start = chance.randrange(len(other) + 1)
            talk[at:at] = other[start : start + chance.randrange(80)]
        elif talk:
            talk[at % len(talk)] ^= 1 << chance.randrange(8)
    return bytes(talk[:TALK_BYTES_MAX])


def by_chance(seconds: float, seed: int) -> int:
    """Hold talks for so long; 1 if one fails."""
    from tests.fuzz import door

    chance = random.Random(seed)
    talks = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    trial = door.Trial(door.TLS if seed % 2 == 0 else door.CLEAR)
    outcomes: Counter[str] = Counter()
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        talk = changed(chance, talks)
        try:
            outcomes[trial.talk(talk)] += 1
        except Exception:
            print(f"fails: {keep(talk)} (seed {seed})", file=sys.stderr)
            raise
    trial.close()
    print(f"{outcomes.total()} talks, seed {seed}: {dict(outcomes.most_common())}")
    return 0


def by_atheris(seconds: float, seed: int) -> int:
    """The same, led by what is reached."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz import door
    trial = door.Trial(door.TLS if seed % 2 == 0 else door.CLEAR)

    def hold(talk: bytes) -> None:
        try:
            trial.talk(talk)
        except Exception:
            print(f"fails: {keep(talk)}", file=sys.stderr)
            raise

    found = tempfile.mkdtemp(prefix="fuzz-door-")
    words = [sys.argv[0], found, str(CORPUS), f"-max_total_time={int(seconds)}", f"-seed={seed}"]
    more = [f"-max_len={TALK_BYTES_MAX}", f"-artifact_prefix={found}/", "-print_final_stats=1"]
    atheris.Setup(words + more, hold)
    atheris.Fuzz()  # leaves the process
    return 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by-chance", action="store_true", help="without atheris")
    asked = parser.parse_args()
    if asked.by_chance or importlib.util.find_spec("atheris") is None:
        return by_chance(asked.seconds, asked.seed)
    return by_atheris(asked.seconds, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
