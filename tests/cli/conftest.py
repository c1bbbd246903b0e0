"""One way to run a command line in this process, as a person would type it."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcome import Outcome

from modelscope_cli.inputs.python_inputs import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.load import load_model
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.shell.app import run as run_argv

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = f"{SAMPLES}/tiny_resnet.py:TinyResNet"

# What `{...}` in a command line of a test stands for.
WORDS = {
    "samples": str(SAMPLES),
    "harbour": f"{SAMPLES}/harbour.jpg",
    "composition": f"{SAMPLES}/composition.jpg",
    "star": f"{SAMPLES}/star.png",
    "tiny": f"--model {TINY} --weights none",
    "healthy": f"--model {TINY} --checkpoint {SAMPLES}/tiny_resnet.safetensors",
    "sick": f"--model {TINY} --checkpoint {SAMPLES}/sick.safetensors",
    "squeezenet": f"--model squeezenet1_1 --checkpoint {SAMPLES}/shapes_squeezenet1_1.safetensors",
    "TINY": TINY,
}


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in; no network, and no torch cache of this machine."""
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest) -> None:
    """Write empty figures, except for a test marked `drawn`: it looks at them."""
    if request.node.get_closest_marker("drawn") is None:
        request.getfixturevalue("undrawn")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `modelscope ...` in this process; `{words}` are filled in, then it is split as a shell would."""

    def run_it(line: str, expect: int | None = 0, **words: object) -> Outcome:
        capsys.readouterr()
        code = run_argv(shlex.split(line.format(**WORDS, **words)))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert expect is None or code == expect, err
        return Outcome(code, out, err)

    return run_it


@pytest.fixture
def refused(run: Run) -> Callable[..., tuple[str, str]]:
    """Run what cannot work; return the one line of the error and the one of the hint, last on stderr."""

    def refuse(line: str, code: int, **words: object) -> tuple[str, str]:
        outcome = run(line, expect=code, **words)
        *before, message, blank, hint = outcome.err.splitlines()
        assert not any(line.startswith(("error: ", "hint: ")) for line in before)
        assert message.startswith("error: ")
        assert not message.endswith(".")
        assert blank == ""
        assert hint.startswith("hint: ")
        assert outcome.out == ""
        return message, hint

    return refuse


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES


@pytest.fixture(scope="session")
def loaded() -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    """Return a function that gives a module and its arguments for some images, to be run without a command."""

    def load(*images: str, **request: Any) -> tuple[Any, tuple[Any, ...]]:
        model = load_model(ModelRequest(device="cpu", **request))
        inputs = open_inputs(
            InputRequest(files=tuple(str(SAMPLES / image) for image in images)),
            family=model.family,
            transforms=model.transforms,
            module=model.module,
            device=model.device,
            dtype=model.dtype,
        )
        return model.module, next(iter(inputs)).args

    return load
