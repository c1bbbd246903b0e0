"""Ctrl-C, SIGTERM and SIGHUP in real processes: one exit code, no traceback, nothing half-written left."""

import os
import signal
import subprocess
import sys
import time

import pytest
import warm

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

CODES = {
    signal.SIGINT: (130, -signal.SIGINT),
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGHUP: (129, -signal.SIGHUP),
}
# Says that it stands where it waits, in the very write of a part of the result. It sleeps in short pieces, as a
# signal that comes just before a sleep does not end it.
WAITING = """
import pathlib, sys, time
from modelscope_cli import __main__
from {module} import {name}
import {module} as module

def wait(*arguments, **named):
    done = {name}(*arguments, **named)
    pathlib.Path("../reached").touch()
    for _ in range(3000):
        time.sleep(0.01)
    return done

module.{name} = wait
sys.argv[0] = "modelscope"
__main__.main()
"""
TINY = "-m {samples}/tiny_resnet.py:TinyResNet"
SMALL = f"{TINY} --pictures 20 --size 16 --batch 4"
# What is waited in, and the command.
MOMENTS = {
    "stats": (
        "modelscope_cli.report.stats.figures.layer_panels",
        f"stats {TINY} -w none --size 16 {{star}} --plot p.png",
    ),
    "featuremaps": (
        "modelscope_cli.report.image_tiles.save_png",
        f"featuremaps {TINY} -w none --size 16 {{star}}",
    ),
    "grads": ("modelscope_cli.report.view.save_figure", f"grads {TINY} -w none --size 16 {{star}}"),
    "train": ("modelscope_cli.report.view.save_figure", f"train {SMALL} --steps 2"),
    "weights": (
        "modelscope_cli.analysis.weights.statistics.write_safetensors",
        "weights {samples}/sick.safetensors --convert c.safetensors",
    ),
}  # fmt: skip


def leftovers(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", MOMENTS)
def test_a_result_half_written_goes_with_the_run(cwd, samples, name):
    """By SIGTERM, as batch systems send it, or SIGHUP, by a lost connection; `test_interrupts.py` has Ctrl-C."""
    number = signal.SIGHUP if name in ("grads", "train") else signal.SIGTERM
    where, line = MOMENTS[name]
    module, _, function = where.rpartition(".")
    line = line.format(samples=samples, star=samples / "star.png")
    process = warm.start("-c", WAITING.format(module=module, name=function), *line.split(), cwd=cwd)
    process.wait_for(cwd.parent / "reached")
    process.send_signal(number)
    process.send_signal(number)  # an impatient second one does not interrupt the clean-up
    out, err = process.communicate(timeout=60)
    assert process.returncode == CODES[number][0], err
    assert "Traceback" not in err
    assert (out, leftovers(cwd)) == ("", [])


def test_at_any_moment(cwd):
    """From the first line of ours on; before it Python itself is still starting, and answers in its own way."""
    command = [sys.executable, "-m", "modelscope_cli", "rules", "-o", "rules.json", "--force"]

    def start():
        return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    began = time.monotonic()
    first = start()
    first.communicate(timeout=60)
    assert first.returncode == 0
    whole = time.monotonic() - began
    (cwd / "rules.json").unlink()
    for number, codes in CODES.items():
        for share in (4, 6, 8, 10):
            process = start()
            time.sleep(whole * share / 10)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            assert process.returncode in (0, *codes), err
            if process.returncode not in codes[1:]:
                assert "Traceback" not in err
            assert set(leftovers(cwd)) <= {"rules.json"}
            assert process.returncode != 0 or leftovers(cwd) == ["rules.json"]


def test_a_signal_that_arrives_while_a_class_is_made(cwd):
    """Python raises RuntimeError in place of any exception of `__set_name__`."""
    script = """
import dataclasses, signal, sys
from modelscope_cli import __main__

def named(self, owner, name):
    if owner.__name__ == "ListedImage":
        signal.raise_signal(signal.SIGTERM)

dataclasses.Field.__set_name__ = named
sys.argv[0] = "modelscope"
__main__.main()
"""
    line = [sys.executable, "-c", script, "rules", "-o", "rules.json"]
    done = subprocess.run(line, check=False, cwd=cwd, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.partition(":")[0]) == (143, "", "terminated")
