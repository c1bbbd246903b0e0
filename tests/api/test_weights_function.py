"""`ms.weights` and `ms.scan`: what the command gives, from Python."""

import shlex

import pytest
import torch
from function_and_command import HEALTHY, SICK, plain, tiny_resnet, without

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError


class Dangerous:
    """Unpickling it would run a command."""

    def __reduce__(self):
        import os

        return os.system, ("true",)


@pytest.fixture
def checkpoints(cwd):
    """One checkpoint of each kind that is read in its own way."""
    state = tiny_resnet().state_dict()
    torch.save({"state_dict": state, "epoch": 3}, cwd / "file.pt")
    torch.save(state, cwd / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": state, "more": Dangerous()}, cwd / "dangerous.pt")
    return {name: str(cwd / name) for name in ("file.pt", "legacy.pt", "dangerous.pt")}


@pytest.mark.parametrize("name", ["safetensors", "file.pt", "legacy.pt"])
@pytest.mark.parametrize(
    ("flags", "keywords"), [("", {}), ("-l block1 --stats", {"layer": "block1", "stats": True})]
)
def test_function_and_command_give_the_same_document(both, checkpoints, name, flags, keywords):
    file = SICK if name == "safetensors" else checkpoints[name]
    typed = both.typed(f"weights {shlex.quote(file)} {flags}")
    found = plain(ms.weights(file, **keywords).to_dict())
    assert without(found) == without(typed)
    assert list(found) == list(typed)
    assert found["tensors"]
    assert both.said() == ""


def test_a_file_with_code_in_it_is_reported_alike(both, checkpoints):
    typed = both.typed(f"weights {checkpoints['dangerous.pt']}", code=1)
    found = ms.weights(checkpoints["dangerous.pt"])
    assert without(plain(found.to_dict())) == without(typed)
    assert found.safety.fails("dangerous")
    assert both.said() == ""


def test_a_converted_file_holds_the_same(both, cwd):
    both.typed(f"weights {HEALTHY} --convert typed.safetensors -l block1")
    ms.weights(HEALTHY, convert="called.safetensors", layer="block1")
    assert (cwd / "typed.safetensors").read_bytes() == (cwd / "called.safetensors").read_bytes()
    assert both.said() == ""


@pytest.mark.parametrize("fail_on", ["dangerous", "never"])
def test_scan_and_its_command_give_the_same_document(both, checkpoints, cwd, fail_on):
    found = ms.scan(cwd, fail_on=fail_on)
    typed = both.typed(f"weights {cwd} --scan --fail-on {fail_on}", code=0 if found.passed else 1)
    assert without(plain(found.to_dict())) == without(typed)
    assert found.passed == (fail_on == "never")
    assert len(found.files) >= len(checkpoints)
    assert both.said() == ""


def test_what_is_not_there_is_refused_alike(both):
    with pytest.raises(CannotRunError, match="nothing to scan at 'nowhere'"):
        ms.scan("nowhere")
    with pytest.raises(CannotRunError, match=r"'nowhere\.pt'"):
        ms.weights("nowhere.pt")
    assert both.said() == ""
