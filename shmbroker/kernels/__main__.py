"""`python -m shmbroker.kernels`: says whether the compiled kernels are there; status 1 if not."""

import sys

from shmbroker.kernels import native

if native is None:
    sys.exit("the compiled kernels are not there: numpy does their work, more slowly")
crc = ("by tables", "in hardware", "in hardware, 512 bits at once")[native.CRC_METHODS - 1]
print(f"compiled kernels: {native.__file__}, CRC-32C {crc}")
