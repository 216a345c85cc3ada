"""The compiled kernels, and a line for Python's start; all else stands in pyproject.toml.

The kernels are optional: where there is no C compiler, the package is built without them and numpy
does their work. One build serves CPython 3.11 and everything later (the stable ABI).

`shmbroker.pth` is run by Python at each start (see the module site): where Spark's archives are in
the path, `shmbroker.spark.archives` takes them out.
"""

import zipfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

FILES = ("module", "crc32c", "batches", "decode", "lz4", "encode", "compact")
PTH = "shmbroker.pth"
AT_START = (
    'import sys; "pyspark.zip" in str(sys.path)'
    ' and __import__("shmbroker.spark.archives", fromlist=["leave_out"]).leave_out()\n'
)


class BuildPy(build_py):
    """With the line for Python's start."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.mkpath(self.build_lib)
            Path(self.build_lib, PTH).write_text(AT_START)

    def get_outputs(self, include_bytecode: int = 1) -> list[str]:
        more = [] if self.editable_mode else [str(Path(self.build_lib, PTH))]
        return super().get_outputs(include_bytecode) + more


class EditableWheel(editable_wheel):
    """With the line as well: of an editable package setuptools takes no files but its own."""

    def run(self) -> None:
        super().run()
        for wheel in Path(self.dist_dir).glob("*.whl"):
            with zipfile.ZipFile(wheel, "a") as opened:
                opened.writestr(PTH, AT_START)


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
    cmdclass={"build_py": BuildPy, "editable_wheel": EditableWheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
