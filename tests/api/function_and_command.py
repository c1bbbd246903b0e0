"""A function and its command beside each other: the same document, and nothing else said."""

import contextvars
import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import nn

from modelscope_cli.shell.app import run

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet"
HEALTHY, SICK = f"{SAMPLES}/tiny_resnet.safetensors", f"{SAMPLES}/sick.safetensors"
STAR = f"{SAMPLES}/star.png"


def tiny_resnet(weights: str = HEALTHY) -> nn.Module:
    """Return the sample as a module of the caller's, as the command finds it: in eval mode."""
    spec = importlib.util.spec_from_file_location("tiny_resnet_of_the_caller", SAMPLES / "tiny_resnet.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.TinyResNet()
    model.load_state_dict(load_file(weights))
    return model.eval()


class Both:
    """Runs a command line for its document, and watches that functions say nothing."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def typed(self, line: str, code: int = 0) -> dict[str, Any]:
        """Return the document of a command that leaves with `code`."""
        self.said()
        # In a context of its own: what was typed here must not stand in what is called afterwards.
        assert contextvars.copy_context().run(run, [*shlex.split(line), "--json"]) == code
        document: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return document

    def failed(self, line: str, code: int | None = None) -> tuple[str, str]:
        """Return the error and the hint of a command that fails, with `code` where one is given."""
        self.said()
        found = contextvars.copy_context().run(run, shlex.split(line))
        assert found == code if code is not None else found in (2, 4)
        said = self._capsys.readouterr().err
        return said.partition("error: ")[2].partition("\n")[0], said.partition("hint: ")[2].strip()

    def said(self) -> str:
        """Return everything written to stdout and stderr since."""
        return "".join(self._capsys.readouterr())


def without(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Leave out what must differ: what was typed, how long it took, and `keys`."""
    return {key: value for key, value in document.items() if key not in {"argv", "elapsed_ms", *keys}}


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as JSON would give it back."""
    from modelscope_cli.report.formats import render_json

    found: dict[str, Any] = json.loads(render_json(document))
    return found
