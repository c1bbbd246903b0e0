"""A document of every command, each made once for the tests that read results back."""

import json
import shlex
from pathlib import Path

import pytest
from undrawn import Undrawn

from modelscope_cli.shell.app import run

SAMPLES = Path(__file__).parent.parent / "samples"
TINY = f"-m {SAMPLES}/tiny_resnet.py:TinyResNet -c {SAMPLES}/tiny_resnet.safetensors"
STAR = f"{SAMPLES}/star.png"
LINES = {
    "ablate": f"ablate {STAR} {TINY} -l block3.conv2 --no-save --size 32",
    "check": f"check {SAMPLES}/tiny_resnet.py:TinyResNet {STAR} -c {SAMPLES}/sick.safetensors --size 32",
    "diff": f"diff {SAMPLES}/tiny_resnet.safetensors {SAMPLES}/sick.safetensors",
    "diff_run": f"diff {SAMPLES}/tiny_resnet.py:TinyResNet {STAR} -c {SAMPLES}/tiny_resnet.safetensors "
    "--size 32 --b-dtype bfloat16",
    "explain": f"explain {STAR} {TINY} --method hirescam --size 32 --batch 64 --receipt none",
    "featuremaps": f"featuremaps {STAR} {TINY} -l conv --size 32",
    "grads": f"grads {STAR} {TINY} --mode train --clip 1 --no-save --size 32",
    "lrfind": f"lrfind -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 12 --pictures 40 --size 16 --batch 4",
    "models": "models alexnet",
    "predict": f"predict {STAR} {TINY} --top 2 --size 32",
    "predict_doctor": f"predict --doctor {STAR} {TINY}",
    "rules": "rules",
    "stats": f"stats {STAR} {TINY} --mode train --size 32",
    "stats_blocks": f"stats {STAR} {SAMPLES}/harbour.jpg {TINY} --size 32 --batch 1 --out kept --force",
    "summary": f"summary {SAMPLES}/tiny_resnet.py:TinyResNet --html summary.html",
    "train": f"train -m {SAMPLES}/tiny_resnet.py:TinyResNet --steps 3 --pictures 40 --size 16 --batch 4",
    "watch": f"watch --steps 3 {SAMPLES}/train.py",
    "weights": f"weights {SAMPLES}/tiny_resnet.safetensors --stats",
    "weights_scan": f"weights --scan {SAMPLES}/tiny_resnet.safetensors",
}
DRAWN = ("featuremaps",)  # whose folders are looked at


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """What `-o FILE.json` of each line holds; the commands run when their document is first asked for."""
    folder = tmp_path_factory.mktemp("results")
    return _Documents(folder)


class _Documents:
    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, {}

    def folder_of(self, name: str) -> Path:
        """Return the folder that the command left behind."""
        return self._folder / self[name]["out_dir"]

    def __getitem__(self, name: str) -> dict:
        if name not in self._known:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(self._folder)
                patch.setenv("MSCOPE_OFFLINE", "1")
                patch.setenv("TORCH_HOME", str(self._folder))
                if name not in DRAWN:
                    patch.setattr("matplotlib.figure.Figure", Undrawn)
                command, _, rest = LINES[name].partition(" ")
                assert run([command, "--quiet", "-o", f"{name}.json", *shlex.split(rest)]) in (0, 1)
            self._known[name] = json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        return self._known[name]
