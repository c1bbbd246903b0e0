"""Processes of trials: forks of one that has imported torch and computed nothing."""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

_SLOW_IMPORTS = "torch", "numpy", "torchvision", "timm", "transformers", "torch._dynamo"
_TICK = 0.02  # seconds
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import start; start()"


class TrialProcess:
    """Runs one trial after the other.

    The process that is forked is started once: it imports what the script imported and is slow to import.
    """

    def __init__(self) -> None:
        imported = [name for name in _SLOW_IMPORTS if name in sys.modules]
        self._server = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path), *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._running: int | None = None  # process of a trial, which leads a group

    def run(self, spec: str, until: float, is_cut: Callable[[], bool]) -> bool:
        """Run a trial, and return whether it ended by itself.

        Args:
            spec: the file that describes it.
            until: time on the monotonic clock at which it is killed; `is_cut`: whether it is to be killed now.
        """
        asking, answers = self._server.stdin, self._server.stdout
        assert asking is not None
        assert answers is not None
        asking.write(spec.encode() + b"\n")
        asking.flush()
        is_killed = False
        while True:
            if not is_killed and (is_cut() or time.monotonic() >= until):
                is_killed = True
                self.kill()
            if not select.select([answers], [], [], _TICK)[0]:
                continue
            line = answers.readline()
            if not line.startswith(b"pid"):
                break
            self._running, is_killed = int(line.split()[1]), False
        self.kill()  # workers that it left behind
        self._running = None
        return not is_killed

    def kill(self) -> None:
        """End the running trial and all processes that it started."""
        if self._running is not None:
            for kill in (os.killpg, os.kill):  # it may not lead a group yet
                with suppress(ProcessLookupError, PermissionError):
                    kill(self._running, signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        self.kill()
        self._server.kill()
        self._server.wait()
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def serve(lines: IO[bytes], answers: int) -> None:
    """Run each trial whose file a line names, and tell its process and when it ended."""
    from modelscope_cli.watching.trials.child import Spec, run

    while line := lines.readline():
        spec = Path(line.decode().rstrip("\n"))
        child = os.fork()
        if not child:
            os.setsid()
            os.close(answers)
            run(Spec(**json.loads(spec.read_text())))
        os.write(answers, f"pid {child}\n".encode())
        while not os.waitpid(child, os.WNOHANG)[0]:
            if select.select([lines], [], [], _TICK)[0]:  # closed: our parent has ended
                os.killpg(child, signal.SIGKILL)
                return
        os.write(answers, b"end\n")


def start() -> None:
    """Import what is slow to import, then serve; the command line names the folders of imports and the modules."""
    for module in sys.argv[2:]:
        with suppress(ImportError):
            importlib.import_module(module)
    answers = os.dup(1)
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
