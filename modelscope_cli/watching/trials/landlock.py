"""Forbid this process and its children to write, except in some places: Landlock, of Linux since 5.13.

https://docs.kernel.org/userspace-api/landlock.html. A process needs no privilege for it, and cannot undo it. It
also holds what Python does not see: files written by C++, by another program, by a shell. It does not hold a change
of mode, owner or times of a file that exists (`chmod`, `chown`, `utime`), nor threads that run already.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_VERSION = _BENEATH = 1  # return the version only; a rule for a folder and all below it, or for a file
_NO_NEW_PRIVILEGES = 38  # of prctl
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
_REFER = 1 << 13  # link or rename between folders
# Remove a folder, a file; make a device, a folder, a file, a socket, a pipe, a block device, a symbolic link
_CHANGES = sum(1 << bit for bit in range(4, 13))
_SINCE = {_REFER: 2, _TRUNCATE: 3}  # versions
_SHARED = Path("/dev/shm")  # tensors of the workers of a DataLoader
_DEVICES = "null", "zero", "full", "tty", "ptmx", "pts", "dri", "kfd", "dxg"
_NVIDIA = "nvidia*"
_THREADS = Path("/proc/self/task")  # CUDA writes the names of its threads there, or fails with error 304
_pinned: list[int] = []  # the kernel forgets a rule for a folder of /proc once it is closed


def is_available() -> bool:
    """Tell whether the kernel has it, and allows it."""
    return _version() > 0


def forbid_writes(but: Sequence[Path]) -> None:
    """Forbid to write, create, delete and rename anywhere but in these folders and files, and to devices.

    Raises:
        OSError: the kernel refuses it, or a place does not exist.
    """
    handled = _WRITE | _CHANGES | sum(right for right, since in _SINCE.items() if _version() >= since)
    attributes = struct.pack("Q", handled)
    rules = _call(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for place in (*but, *_devices()):
            is_open = place.is_dir() and place in (*but, _SHARED)  # a device can be written, not removed
            allowed = handled if is_open else handled & (_WRITE | _TRUNCATE)
            opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = ctypes.c_char_p(struct.pack("=Qi", allowed, opened))
                _call(_ADD, rules, _BENEATH, rule, 0)
            finally:
                _pinned.append(opened) if place == _THREADS else os.close(opened)
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # without it the next call fails
        _call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _devices() -> list[Path]:
    nvidia = list(Path("/dev").glob(_NVIDIA))
    every = (_SHARED, *(Path("/dev", name) for name in _DEVICES), *nvidia, *[_THREADS] * bool(nvidia))
    return [path for path in every if path.exists()]


def _version() -> int:
    try:
        return _call(_CREATE, None, 0, _VERSION) if sys.platform.startswith("linux") else 0
    except OSError:
        return 0


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
