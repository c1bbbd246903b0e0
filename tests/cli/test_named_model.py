"""The model by position and by `--model`, in every command that takes one."""

import pytest
from PIL import Image

from modelscope_cli.shell.named_model import names_learner, names_model

_TRAINED = "--size 8 --pictures 20 --steps 4 --batch 4"
# What is typed beside the model; everything else is noise.
REST = {
    "summary": "--depth 1",
    "stats": "-w none --size 32 {star}",
    "predict": "-w none --top 1 {star} {harbour}",
    "explain": "-w none --method hirescam --receipt none --columns method,layer,adds_up_to {star}",
    "train": _TRAINED,
    "check": "-w none --select MS1 {star}",
    "diff": "-w none --b-seed 3",
}


@pytest.mark.parametrize("command", REST)
def test_a_model_by_position_is_the_model_by_option(run, command):
    code = int(command == "diff")
    by_position = run(f"{command} {{TINY}} {REST[command]}", expect=code).out
    assert by_position == run(f"{command} --model {{TINY}} {REST[command]}", expect=code).out
    if command == "summary":  # one function reads it for all commands
        assert by_position == run(f"{command} {{TINY}} {REST[command]} -m {{TINY}}", expect=code).out
    assert by_position.count("\n") > 1 or command == "check"  # which finds nothing


@pytest.mark.parametrize("command", REST)
def test_two_models_are_one_too_many(refused, run, command):
    message, hint = refused(f"{command} {{TINY}} {REST[command]} --model resnet18", 2)
    assert message.endswith("and '--model resnet18' both name a model")
    assert hint.startswith(f"hint: modelscope {command} ")
    assert "resnet18" not in hint


@pytest.mark.parametrize("command", ["predict"])
def test_a_model_is_not_an_image(refused, command):
    message, hint = refused(f"{command} resnet18", 2)
    assert "'IMAGE'" in message
    assert hint == f"hint: modelscope {command} resnet18 IMAGE"


@pytest.mark.parametrize("command", ["stats", "train"])
def test_a_mistyped_model_is_recognised(refused, command):
    message, hint = refused(f"{command} resnt34", 2)
    assert message.startswith("error: 'resnt34' is neither a file nor a model: did you mean resnet34")
    assert hint == "hint: modelscope summary --list resnet"


def test_what_names_a_model(cwd):
    Image.new("RGB", (8, 8)).save(cwd / "resnet18", "png")
    (cwd / "weights.pt").touch()
    (cwd / "vgg11").mkdir()
    for word in ("resnet34", "ResNet34", "net.py:Net", "some/where.py:Net", "torchvision.models:resnet18"):
        assert names_model(word)
        assert names_learner(word)
    for word in ("resnet18", "vgg11", "photo.jpg", "*.jpg", "-", "", "C:photo.jpg", "http://x.org/y.jpg"):
        assert not names_model(word)
    assert not names_model("weights.pt")
    assert names_learner("weights.pt")
    assert names_learner("lost.safetensors")
    for word in ("vgg11", "flowers", "photo.jpg", ""):
        assert not names_learner(word)
