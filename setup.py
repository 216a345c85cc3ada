"""The compiled kernels, and the files beside the package; all else stands in pyproject.toml.

The kernels are optional: where there is no C compiler, the package is built without them and numpy
does their work. One build serves CPython 3.11 and everything later (the stable ABI).

All of `systemd/` and `ops/` goes, as it lies there, into `share/shmbroker` of the environment that
a wheel is installed into.
"""

from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
FILES = (
    "module",
    "look",
    "straight",
    "standing",
    "crc32c",
    "batches",
    "decode",
    "lz4",
    "encode",
    "appends",
    "plain",
    "compact",
)


def beside(*directories: str) -> list[tuple[str, list[str]]]:
    """(directory in the environment, its files) of all that lies below these."""
    found: dict[str, list[str]] = {}
    for directory in directories:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.is_file():
                name = path.relative_to(ROOT)
                found.setdefault(f"share/shmbroker/{name.parent}", []).append(str(name))
    return list(found.items())


setup(
    data_files=beside("ops", "systemd"),
    ext_modules=[
        Extension(
            "shmbroker.kernels._native",
            [f"shmbroker/kernels/{name}.c" for name in FILES],
            depends=["shmbroker/kernels/kernels.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-fwrapv", "-fvisibility=hidden", "-g0"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
