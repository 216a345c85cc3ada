"""What a run did, and what it found."""

from dataclasses import dataclass, field

from tests.exactly_once.judging import Anomalies


@dataclass
class Report:
    seconds: float
    """For how long there were faults."""
    fed: int = 0
    """Records that went in."""
    came_out: int = 0
    committed: int = 0
    """Transactions whose clients were told so; Kafka Streams does not tell."""
    aborted: int = 0
    unsure: int = 0
    reads: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    """How often what was done to whom."""
    anomalies: Anomalies = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """The faults in their order."""

    def lines(self) -> list[str]:
        """What to print."""
        transactions = (
            f"{self.committed} committed, {self.aborted} aborted, {self.unsure} not known"
        )
        faults = ", ".join(f"{what} {count}" for what, count in sorted(self.faults.items()))
        found = [
            f"  {name}: {len(cases)}, the first {cases[0]}"
            for name, cases in self.anomalies.items()
        ]
        return [
            f"{self.seconds:g} s, {self.fed} records in, {self.came_out} out, {self.reads} reads, "
            f"transactions: {transactions}",
            f"  {sum(self.faults.values())} faults: {faults}",
            *found,
            *(["  " + "; ".join(self.said)] if found else []),
        ]
