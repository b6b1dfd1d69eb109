"""Become another program that does not outlive the process which started it.

    python -I -S tether.py PARENT_PID SIGNAL USER_ID NICE program argument…

The kernel sends SIGNAL to the program when its parent dies, however the parent dies. The setting belongs to this
process and survives the exec below, so the program needs to know nothing of it. Python's own `preexec_fn` could do
the same, but runs Python between fork and exec, which may deadlock once the parent has threads.

With USER_ID other than -1 the program runs as that user and keeps one right of root's: to pass folders that only root
may open. PostgreSQL refuses to be root, but its data and its programs may well lie below root's own folders.

Runs on its own, without the packages around it: it must start within a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522


class CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilitySets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def become(user_id: int) -> None:
    """Leave root for `user_id` and keep only the right to pass any folder."""
    checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "PR_SET_KEEPCAPS")
    os.setgroups([])
    os.setgid(user_id)
    os.setuid(user_id)
    right = 1 << CAP_DAC_OVERRIDE
    header = CapabilityHeader(CAPABILITY_VERSION_3, 0)
    sets = (CapabilitySets * 2)(CapabilitySets(right, right, right))
    checked(libc.capset(ctypes.byref(header), sets), "capset")
    checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0), "PR_CAP_AMBIENT_RAISE")


def nice_group(nice: int) -> None:
    """Say it for the session as well: where the kernel groups processes by session (sched_autogroup), the share of the
    processor goes to groups, and a process's own niceness counts only within its own.
    """
    for _ in range(20):
        try:
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(nice))
        except BlockingIOError:  # the kernel takes one such wish each tenth of a second
            time.sleep(0.1)
        except OSError:
            return  # a kernel without such groups
        else:
            return


def main() -> None:
    parent, death_signal, user_id, nice = (int(argument) for argument in sys.argv[1:5])
    program = sys.argv[5:]
    os.nice(nice)
    if nice:
        nice_group(nice)
    if user_id != -1:
        become(user_id)
    # After the change of user, which would clear it.
    checked(libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # It died before the line above.
        sys.exit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
