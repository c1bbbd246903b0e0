"""Time the steps of a training from inside: on the path of a process, and told where to write by `COST_CLOCK`.

Writes, as JSON, the CPU seconds of the process at its first optimizer step, after the first 20, after the last,
and at its end, with the number of steps and the peak memory in bytes. Python imports it in every process that is
started with its folder in PYTHONPATH, watched or not, so that both pay the same for it.
"""

import atexit
import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import time

_TARGET = os.environ.pop("COST_CLOCK", None)  # the processes that this one starts are not timed
_MEETING = os.environ.pop(
    "COST_MEETING", None
)  # a folder where the two processes of a pair wait for each other
_OPENING = 20  # steps that are recorded closely
_seen: dict[str, float] = {"steps": 0}


def _before(*_: object) -> None:
    _seen.setdefault("first", time.process_time())


def _after(*_: object) -> None:
    _seen["last"] = time.process_time()
    _seen["steps"] += 1
    if _seen["steps"] == _OPENING:
        _meet()
        _seen["opened"] = time.process_time()


def _meet() -> None:
    """Wait for the other process, so that what else the machine does from here on slows down both."""
    if _MEETING is not None:
        with open(os.path.join(_MEETING, str(os.getpid())), "w"):
            pass
        end = time.monotonic() + 120  # the other may have failed
        while len(os.listdir(_MEETING)) < 2 and time.monotonic() < end:
            time.sleep(0.02)


class _Finder(importlib.abc.MetaPathFinder):
    """Hooks the steps of every optimizer as soon as torch has them."""

    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            module.register_optimizer_step_pre_hook(_before)
            module.register_optimizer_step_post_hook(_after)

        loader.exec_module = exec_module
        return spec


def _write(process: int) -> None:
    if os.getpid() == process:
        times = os.times()
        _seen["end"] = time.process_time() + times.children_user + times.children_system
        _seen["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open(_TARGET, "w", encoding="utf-8") as file:
            json.dump(_seen, file)


if _TARGET:
    atexit.register(_write, os.getpid())  # the first to be registered is the last to be called
    sys.meta_path.insert(0, _Finder())
