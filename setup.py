"""The compiled kernels; all else stands in pyproject.toml.

The kernels are optional: where there is no C compiler, the package is built without them and numpy
does their work. One build serves CPython 3.11 and everything later (the stable ABI).
"""

from setuptools import Extension, setup

FILES = ("module", "crc32c", "batches", "decode", "lz4", "encode", "compact")

setup(
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
