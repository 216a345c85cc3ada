"""What the kernel says of a process."""

import os

from shmbroker.metrics import proc
from shmbroker.metrics.samples import Samples

NO_PID = 2**22 + 9
"""Above any that Linux gives."""


def test_this_process_is_shown_and_one_that_has_ended_is_left_out() -> None:
    samples = Samples()
    proc.gather(samples, [("me", os.getpid()), ("gone", NO_PID)])
    assert samples.value("shmbroker_process_cpu_seconds_total", "me", "user") > 0
    assert samples.value("shmbroker_process_memory_bytes", "me", "anonymous") > 1 << 20
    assert samples.value("shmbroker_process_threads", "me") >= 1
    assert (
        0
        < samples.value("shmbroker_process_open_fds", "me")
        <= samples.value("shmbroker_process_max_fds", "me")
    )
    assert samples.value("shmbroker_process_context_switches_total", "me", "voluntary") >= 0
    assert all(labels[0] == "me" for _, rows in samples.values() for labels in rows)
