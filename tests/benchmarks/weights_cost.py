"""Time and memory of `weights` as a whole process against `torch.load`, and how long it takes to name a model."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import torch
from figure import Figure
from paired import PYTHON, compare_commands, compare_cpu

from modelscope_cli.models.architecture import on_meta

GIGABYTES = float(os.environ.get("MSCOPE_BENCH_GB", "1.2"))
N_TENSORS = 300
MOST_SECONDS = 2.0
_PEER = Path(__file__).parent / "peers" / "torch_load.py"
_IS_TORCH_FREE = """
import sys
from modelscope_cli.shell.app import run
run(sys.argv[1:])
sys.exit("torch" in sys.modules)
"""
_IDENTIFY = """
import sys, time
import torch
begin = time.perf_counter()
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import ModelRequest
recognise(ModelRequest(sys.argv[1], strict=False))
print(time.perf_counter() - begin)
"""


def measure(pairs: int | None) -> Iterator[Figure]:
    """List a checkpoint of 1.2 GB, which is written to a temporary folder and read once before for both."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.pth")
        numel = int(GIGABYTES * 1e9 / N_TENSORS / 4)
        torch.save({f"layer{n}.weight": torch.full((numel,), float(n)) for n in range(N_TENSORS)}, path)
        ours = [PYTHON, "-m", "modelscope_cli", "weights", str(path)]
        seconds, peak = compare_commands(ours, [PYTHON, str(_PEER), str(path)], pairs or 5)
        over = f"`weights` on a checkpoint of {GIGABYTES:.1f} GB / torch.load and a list"
        yield seconds.at_most(f"time of {over}", 0.06)
        yield peak.at_most(f"peak memory of {over}", 0.05)
        with chdir(folder):  # without settings of a project
            cpu = compare_cpu(ours, [*ours[:3], "--version"], pairs or 7)
        yield cpu.at_most(
            f"CPU seconds of `weights` on a checkpoint of {GIGABYTES:.1f} GB / of --version", 5.0
        )
        done = subprocess.run([PYTHON, "-c", _IS_TORCH_FREE, *ours[3:]], capture_output=True, check=False)
        yield Figure(
            "`weights`: torch", "imported" if done.returncode else "not imported", "not", not done.returncode
        )
    yield _identification()


def _identification() -> Figure:
    """Name the largest state dict, one tensor short: no name fits, so all are compared."""
    from torchvision.models import get_model

    with tempfile.TemporaryDirectory() as folder, on_meta():
        state = get_model("regnet_y_128gf").state_dict()
        state.popitem()
        torch.save({f"module.{name}": tensor for name, tensor in state.items()}, Path(folder, "a.pth"))
        command = [PYTHON, "-c", _IDENTIFY, str(Path(folder, "a.pth"))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = float(done.stdout)
    what = "seconds to name the architecture of a state dict, beyond importing torch"
    return Figure(what, f"{seconds:.2f}", f"<= {MOST_SECONDS:.0f}", seconds <= MOST_SECONDS)
