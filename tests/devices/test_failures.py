"""A device that is full, lost, or lacks something ends in one line and exit code 4; what was finished is kept."""

import json
from pathlib import Path

import pytest
import warm
from device_trainings import BEGIN, TRAININGS
from outcome import Outcome
from stand_in_runs import Python
from test_commands import COMMANDS, INPUTS, MODEL

TRAIN = ("train", "--steps", "4", MODEL[0], "--size", "32", "--pictures", "60", "--out", "out")
LINES = {
    name: (*words, *INPUTS["image" if name in ("explain", "featuremaps") else "folder"])
    for name, words in COMMANDS.items()
    if name != "summary"
} | {"train": TRAIN, "lrfind": ("lrfind", *TRAIN[1:])}
ALL = 10**9
COUNTED = """
from modelscope_cli.shell.app import run
code = run(sys.argv[1:])
print(stand.settings.kernels_left, file=sys.stderr)
"""


def in_folder(demo: Path, folder: Path) -> Path:
    """Return a new folder with the samples."""
    folder.mkdir()
    (folder / "demo").symlink_to(demo)
    return folder


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if "demo" not in file.parts}


def is_refused(outcome: Outcome, folder: Path) -> bool:
    """Tell whether a command ended in an error of one line with a hint, and left no file but finished blocks."""
    said = [line for line in outcome.err.splitlines() if line.startswith(("error: ", "hint: "))]
    left = {name for name in files_in(folder) if not name.startswith(("out/blocks", "out/run.json"))} - {
        "out"
    }
    return outcome.code == 4 and len(said) == 2 and "bug" not in outcome.err and not left


@pytest.mark.parametrize("name", LINES)
def test_a_device_lost_in_the_middle_is_told_in_a_line(
    command: Python, python: Python, demo: Path, tmp_path: Path, name: str
) -> None:
    words = (*LINES[name], "--device", "stand")
    whole = python(COUNTED, *words, cwd=in_folder(demo, tmp_path / "whole"), kernels_left=ALL)
    n_kernels = ALL - int(whole.err.split()[-1])
    assert n_kernels > 100
    for share in (0.1, 0.7):
        folder = in_folder(demo, tmp_path / f"{share}")
        outcome = command(*words, cwd=folder, kernels_left=int(share * n_kernels))
        assert is_refused(outcome, folder), outcome.err
        assert "the device failed: stand error: the device is lost" in outcome.err


@pytest.mark.parametrize("name", LINES)
def test_a_full_device_is_told_in_a_line(command: Python, demo: Path, tmp_path: Path, name: str) -> None:
    for n_bytes in (100_000, 350_000):  # less than the weights, less than the activations
        folder = in_folder(demo, tmp_path / f"{n_bytes}")
        outcome = command(*LINES[name], "--device", "stand", cwd=folder, bytes=n_bytes)
        assert is_refused(outcome, folder), outcome.err
        assert "out of memory" in outcome.err
        assert "--device cpu" in outcome.err


@pytest.mark.parametrize("operator", ["relu_", "sum", "_log_softmax"])
def test_an_operator_that_is_missing_is_named(
    command: Python, demo: Path, tmp_path: Path, operator: str
) -> None:
    folder = in_folder(demo, tmp_path / "missing")
    outcome = command(*LINES["grads"], "--device", "stand", cwd=folder, missing=[f"aten::{operator}"])
    assert is_refused(outcome, folder), outcome.err
    assert f"the device has no operator aten::{operator}" in outcome.err
    assert " --device cpu" in outcome.err.partition("hint: modelscope ")[2]


def test_a_model_that_needs_float64_is_told_in_a_line(command: Python, tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text("""
from torch import nn

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.layer(x).double().mean((2, 3))
""")
    words = ("stats", "wide.py:Wide", "-w", "none", "--input-shape", "1,3,8,8", "--device", "stand")
    outcome = command(*words, cwd=tmp_path, has_float64=False)
    assert outcome.code == 4
    assert "the device has no float64" in outcome.err
    assert command(*words, cwd=tmp_path).code == 0


def test_blocks_that_were_finished_are_kept_and_taken_up_again(
    command: Python, demo: Path, tmp_path: Path
) -> None:
    words = ("stats", *MODEL, "demo/shapes/star", "--size", "48", "--batch", "1", "--out", "out", "--json")
    folder = in_folder(demo, tmp_path / "lost")
    outcome = command(*words, "--device", "stand", cwd=folder, kernels_left=3500)
    assert outcome.code == 4
    assert "the finished parts are stored in 'out', for --resume" in outcome.err
    finished = [name for name in files_in(folder) if name.startswith("out/blocks/")]
    assert finished
    again = command(*words, "--device", "stand", "--resume", cwd=folder)
    whole = command(*words, "--device", "stand", cwd=in_folder(demo, tmp_path / "whole"))
    assert again.json["layers"] == whole.json["layers"]


def test_what_watch_recorded_before_the_device_was_lost_is_kept(python: Python, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BEGIN + TRAININGS["healthy"])
    words = ("watch", "--every", "1", "--out", "run", "--json", "script.py", "stand")
    main = "from modelscope_cli.__main__ import main; main()"
    outcome = python(main, *words, cwd=tmp_path, kernels_left=6000)
    found = outcome.json
    assert outcome.code == 1  # that of the script
    assert 0 < found["steps"] < 20
    assert len(found["loss"][0]["value"]) >= found["steps"] - 1
    assert "this is a bug" not in outcome.err
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == found["steps"]


ELSEWHERE = """
import torch
from torch import nn

class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def to(self, *args, **kwargs):
        self.body.to(*args, **kwargs)
        return self

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

class Made(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)

    def forward(self, x):
        return super().forward(x) * torch.ones(4, 1, 1)
"""


@pytest.mark.parametrize("name", ["Partly", "Made"])
def test_half_of_a_model_on_another_device_is_told(command: Python, tmp_path: Path, name: str) -> None:
    (tmp_path / "net.py").write_text(ELSEWHERE)
    words = ("stats", f"net.py:{name}", "-w", "none", "--input-shape", "1,3,8,8", "--device")
    outcome = command(*words, "stand", cwd=tmp_path)
    assert outcome.code == 4
    assert "on the same device" in outcome.err
    assert " --device cpu" in outcome.err.partition("hint: modelscope ")[2]
    assert command(*words, "cpu", cwd=tmp_path).code == 0


SAVED_ELSEWHERE = """
from safetensors.torch import load_file
for place in sys.argv[1:]:
    torch.serialization.location_tag = lambda storage: place
    torch.save(load_file("demo/tiny_resnet.safetensors"), f"{place}.pt")
"""


def test_a_checkpoint_of_another_device_is_loaded_wherever_it_is_wanted(
    command: Python, python: Python, demo: Path, tmp_path: Path
) -> None:
    folder, places = in_folder(demo, tmp_path / "saved"), ("cuda:3", "mps", "stand:7")
    assert python(SAVED_ELSEWHERE, *places, cwd=folder).code == 0
    for device in ("cpu", "stand:1"):
        words = (*INPUTS["image"], "--device", device, "--json")
        here, *there = (
            command("stats", MODEL[0], "-c", file, *words, cwd=folder).json["layers"]
            for file in ("demo/tiny_resnet.safetensors", *(f"{place}.pt" for place in places))
        )
        assert there == [here] * len(places)


def test_a_gpu_that_is_hidden_is_not_here(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = in_folder(demo, tmp_path / "hidden")
    argv = ["-m", "modelscope_cli", "stats", *MODEL, *INPUTS["image"], "--device"]
    refused = warm.run(*argv, "cuda:0", cwd=folder)  # nothing has asked for a GPU before
    assert refused.returncode == 4
    assert "no device 'cuda:0' here" in refused.stderr
    assert warm.run(*argv, "cpu", cwd=folder).returncode == 0
