"""What this process has open: counted by name, as other tests' leftovers close when they like."""

import os


def open_below(path: str) -> list[str]:
    """The files whose paths begin so, one for each descriptor, in order."""
    real, found = os.path.realpath(path), []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # closed meanwhile, or that of the list itself
    return sorted(link for link in found if link.startswith(real))
