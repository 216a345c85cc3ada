"""Why a broker's file can't be opened by this user, and what would let it.

the directory or file is open to its group    who is missing in that group is told to join it;
                                              who has joined it since this process began, to
                                              log in anew
it is not                                     the broker has to open it to its group
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator

from shmbroker.client.faults import RUN_AS_OWNER, NoFilesFault

_GROUP_BITS = {os.R_OK: stat.S_IRGRP, os.W_OK: stat.S_IWGRP, os.X_OK: stat.S_IXGRP}


def forbidden(path: str, verb: str, needed: int) -> NoFilesFault:
    """The fault for a path that can't be opened for want of a permission: one of R_OK and W_OK, or
    what leads there can't be entered."""
    user = user_name(os.geteuid())
    text = f"user {user} may not {verb} {path}"
    for place, wanted in _way_to(path, needed):
        try:
            if os.access(place, wanted, effective_ids=True):
                continue
            found = os.stat(place)
        except OSError:
            break
        group = group_name(found.st_gid)
        if found.st_mode & _GROUP_BITS[wanted] and found.st_gid not in _groups():
            if _is_member(user, found.st_gid):
                return NoFilesFault(
                    f"{text}: it is in the group {group} by now, but this process began before; "
                    "log in anew, or restart its service"
                )
            return NoFilesFault(
                f"{text}: it is not in the group {group}; usermod -aG {group} {user}, and log in "
                "anew (SupplementaryGroups= in a unit)"
            )
        what = f"{place} has the mode {stat.S_IMODE(found.st_mode):04o}"
        return NoFilesFault(f"{text}: {what}, of {user_name(found.st_uid)}:{group}", RUN_AS_OWNER)
    return NoFilesFault(text, RUN_AS_OWNER)


def _way_to(path: str, needed: int) -> Iterator[tuple[str, int]]:
    """Each directory above, from the root on, and the path itself; what is needed of each."""
    place = os.sep
    *directories, name = os.path.abspath(path).split(os.sep)[1:]
    for directory in directories:
        yield place, os.X_OK
        place = os.path.join(place, directory)
    yield place, os.X_OK
    yield os.path.join(place, name), needed


def _groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


def _is_member(user: str, group: int) -> bool:
    """Whether a user belongs to a group by the user database, whatever this process runs with."""
    try:
        return user in grp.getgrgid(group).gr_mem or pwd.getpwnam(user).pw_gid == group
    except KeyError:
        return False


def user_name(number: int) -> str:
    """The user's name; its number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    """The group's name; its number where it has none."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
