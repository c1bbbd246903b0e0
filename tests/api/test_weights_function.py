"""`ms.weights` and `ms.scan`: what the command gives, from Python."""

import shlex

import pytest
import torch
from function_and_command import SICK, plain, tiny_resnet, without

import modelscope_cli as ms


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


@pytest.mark.parametrize("name", ["safetensors", "file.pt"])
def test_function_and_command_give_the_same_document(both, checkpoints, name):
    file = SICK if name == "safetensors" else checkpoints[name]
    typed = both.typed(f"weights {shlex.quote(file)} -l block1 --stats")
    found = plain(ms.weights(file, layer="block1", stats=True).to_dict())
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


@pytest.mark.parametrize("fail_on", ["dangerous", "never"])
def test_scan_and_its_command_give_the_same_document(both, checkpoints, cwd, fail_on):
    found = ms.scan(cwd, fail_on=fail_on)
    typed = both.typed(f"weights {cwd} --scan --fail-on {fail_on}", code=0 if found.passed else 1)
    assert without(plain(found.to_dict())) == without(typed)
    assert found.passed == (fail_on == "never")
    assert len(found.files) >= len(checkpoints)
    assert both.said() == ""
