"""Processes forked from a Python that has imported everything heavy: each saves the seconds which that takes.

`start` and `run` stand for `subprocess.Popen` and `subprocess.run` of `[sys.executable, *arguments]`, both outputs
captured as text. The interpreter itself is not fresh: tests of what is imported, of how Python starts or of the
traceback it prints start one of their own, or ask for one that has imported torch alone.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

# What a Python has imported before it is forked; `.*` stands for every module of a package.
EVERYTHING = ("torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg", "modelscope_cli.*")
TORCH = ("torch",)


class Process:
    """The part of `subprocess.Popen` that tests need."""

    def __init__(
        self, arguments: list[str], cwd: Path | None, env: Mapping[str, str] | None, imported: tuple[str, ...]
    ) -> None:
        self.args = arguments
        self.returncode: int | None = None
        out, err, self._status = os.pipe(), os.pipe(), os.pipe()
        request = {"argv": arguments, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ)}
        given = [out[1], err[1], self._status[1]]
        server = _server(imported)
        socket.send_fds(server, [json.dumps(request).encode()], given)
        for descriptor in given:
            os.close(descriptor)
        self.stdout, self.stderr = open(out[0]), open(err[0])  # noqa: SIM115
        self.pid = int(server.recv(64))

    def poll(self) -> int | None:
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def wait_for(self, path: Path, seconds: float = 120) -> None:
        """Wait until a file is there that the process writes; fail where it ends before."""
        end = time.monotonic() + seconds
        while not path.exists():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status[0]], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status[0], 64) or -1)
            os.close(self._status[0])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Read both outputs to their end, so that neither fills up while the other is read."""
        parts: dict[Any, list[bytes]] = {
            stream: [] for stream in (self.stdout, self.stderr) if not stream.closed
        }
        still = list(parts)
        while still:
            ready = select.select(still, [], [], timeout)[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout)
            for stream in ready:
                part = os.read(stream.fileno(), 1 << 16)
                parts[stream].append(part)
                if not part:
                    still.remove(stream)
        self.wait(timeout)
        texts = [b"".join(parts.get(stream, ())).decode() for stream in (self.stdout, self.stderr)]
        self.stdout.close()
        self.stderr.close()
        return texts[0], texts[1]

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


def start(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    imported: tuple[str, ...] = EVERYTHING,
) -> Process:
    """Start `python ARGUMENTS...`; the arguments are `-m MODULE`, `-c CODE` or a file, and what follows."""
    return Process([str(one) for one in arguments], cwd, env, imported)


def run(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    imported: tuple[str, ...] = EVERYTHING,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS...` to its end."""
    process = start(*arguments, cwd=cwd, env=env, imported=imported)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


@cache
def _server(imported: tuple[str, ...]) -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        process = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno()), *imported],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def dismiss() -> None:
        here.close()
        process.wait()

    atexit.register(dismiss)
    return here


def _import(name: str) -> None:
    package, dot, _ = name.partition(".*")
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, f"{package}.") if dot else ():
        if not found.name.endswith(".__main__"):  # that is to be run
            importlib.import_module(found.name)


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; return only in those, with what to run."""
    waiting: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for ready in select.select([requests, woken], [], [])[0]:
            if ready is woken:
                os.read(woken, 1 << 12)
                _tell_who_ended(waiting)
                continue
            data, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 3)
            if not data:  # whoever asked has gone
                os._exit(0)
            out, err, status = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.dup2(out, 1)
                os.dup2(err, 2)
                for descriptor in (out, err, status, woken, wake, *waiting.values()):
                    os.close(descriptor)
                requests.close()
                return json.loads(data)
            os.close(out)
            os.close(err)
            waiting[pid] = status
            requests.send(str(pid).encode())


def _tell_who_ended(waiting: dict[int, int]) -> None:
    for pid in list(waiting):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            descriptor = waiting.pop(pid)
            os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _become(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Do what `python ARGV...` does."""
    if interrupts := sys.modules.get("modelscope_cli.interrupts"):
        interrupts._State.process = os.getpid()  # as if it had been imported here; a fork is not to clean up
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], cwd
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *argv[2:]], ""
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        exec(argv[1], module.__dict__)
    else:
        sys.argv, sys.path[0] = argv, str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _code_of(request: dict[str, Any]) -> int:
    try:
        _become(**request)
    except SystemExit as left:
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
            return 1
        return left.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _leave(code: int) -> None:
    """End as the processes of `multiprocessing` do; to take apart what was forked takes longer than most tests."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        _import(name)
    gc.freeze()  # what all processes share is not to be looked through, and so copied, by each
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    _leave(_code_of(request))
