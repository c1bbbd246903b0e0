"""`--key`: what is taken out of a checkpoint, in every command that takes one."""

from argparse import Namespace

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file


def tiny(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return torchvision.models.squeezenet1_1(num_classes=3).state_dict()


@pytest.fixture(scope="module")
def states():
    return tiny(1), tiny(2)


@pytest.fixture
def last(states, cwd):
    """A file as timm's CheckpointSaver writes it."""
    own, ema = states
    content = {
        "epoch": 3,
        "arch": "squeezenet1_1",
        "state_dict": own,
        "optimizer": {"state": {0: {"m": own["classifier.1.bias"]}}},
    }
    torch.save({**content, "args": Namespace(lr=0.1), "state_dict_ema": ema}, "last.pth.tar")
    return "last.pth.tar"


@pytest.mark.parametrize(("key", "which"), [(None, 0), ("state_dict", 0), ("state_dict_ema", 1)])
def test_convert_takes_it(run, last, states, key, which):
    run(f"weights {last} {f'--key {key}' if key else ''} --convert out.safetensors")
    copy = load_file("out.safetensors")
    assert copy.keys() == states[which].keys()
    for name, tensor in copy.items():
        assert tensor.numpy().tobytes() == states[which][name].numpy().tobytes()


def test_the_beginning_of_names_is_a_key_too(run, cwd):
    state = {
        "generator.a": torch.ones(1),
        "discriminator.b.c": torch.zeros(2),
        "discriminator.d": torch.ones(3),
    }
    save_file(state, "gan.safetensors")
    torch.save({"state_dict": state, "epoch": 1}, "gan.ckpt")
    for file in ("gan.safetensors", "gan.ckpt"):
        assert run(f"weights {file} --key discriminator").column("name") == ["b.c", "d"]
        assert run(f"weights {file} --key discriminator.b").column("name") == ["c"]
    assert "not read: generator.*" in run("weights gan.ckpt --key discriminator").err


@pytest.mark.parametrize("command", ["weights {}", "stats --model {}", "summary squeezenet1_1 -c {}"])
def test_an_unknown_key_lists_those_there_are(run, last, command):
    error = run(f"{command.format(last)} --key state_dict_em", expect=2).err
    assert "'--key state_dict_em' is not in 'last.pth.tar', which holds state_dict_ema, state_dict, " in error
    assert error.endswith(" --key state_dict_ema\n")


@pytest.mark.parametrize(("line", "said"), [
    ("weights last.pth.tar --key epoch", "'--key epoch' of 'last.pth.tar' contains no tensors"),
    ("summary squeezenet1_1 --key ema", "'--key ema' needs a checkpoint, but none is given"),
    ("diff resnet18 resnet34 --key ema", "'--key ema' needs a checkpoint, but none is given"),
])  # fmt: skip
def test_a_key_of_nothing_is_refused(run, last, line, said):
    assert said in run(line, expect=2).err
