"""The engine of compaction: what is done per record, by the compiled kernels, or without by numpy.

`by_kernels` and `by_numpy` have the same functions, and both write the same bytes. Who asks for
`engine.chosen` when it is needed gets the one that a test has put there.
"""

from shmbroker.kernels import native

if native is not None:
    from shmbroker.log.compaction import by_kernels as chosen
else:
    from shmbroker.log.compaction import by_numpy as chosen  # type: ignore[no-redef]

__all__ = ["chosen"]
