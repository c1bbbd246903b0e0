"""Forbid this process and its children to write, except in some places: Landlock, of Linux since 5.13.

https://docs.kernel.org/userspace-api/landlock.html. A process needs no privilege for it, and cannot undo it. It
also holds what Python does not see: files written by C++, by another program, by a shell.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every architecture
_VERSION = 1  # flag of `_CREATE`: return the version only
_BENEATH = 1  # kind of rule: a folder and all below it, or a file
_NO_NEW_PRIVILEGES = 38  # of prctl
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
_REFER = 1 << 13  # link or rename between folders
# Remove a folder, a file; make a device, a folder, a file, a socket, a pipe, a block device, a symbolic link
_CHANGES = sum(1 << bit for bit in range(4, 13))
_SINCE = {_REFER: 2, _TRUNCATE: 3}  # versions
_DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"),
    *(
        "/dev/dri",
        "/dev/kfd",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ),
)


def is_available() -> bool:
    """Tell whether the kernel has it, and allows it."""
    return _version() > 0


def forbid_writes(but: Sequence[Path]) -> None:
    """Forbid to write, create, delete and rename anywhere but in these folders and files, and to devices.

    Raises:
        OSError: the kernel refuses it, or a place does not exist.
    """
    version = _version()
    handled = _WRITE | _CHANGES | sum(right for right, since in _SINCE.items() if version >= since)
    attributes = struct.pack("Q", handled)
    rules = _call(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for place in (*but, *_devices()):
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
            allowed = handled if place.is_dir() else handled & (_WRITE | _TRUNCATE)
            try:
                rule = struct.pack("=Qi", allowed, folder)
                _call(_ADD, rules, _BENEATH, ctypes.c_char_p(rule), 0)
            finally:
                os.close(folder)
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _devices() -> Iterator[Path]:
    named = [Path(name) for name in _DEVICES]
    yield from (path for path in (*named, *Path("/dev").glob("nvidia[0-9]*")) if path.exists())


def _version() -> int:
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return _call(_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
