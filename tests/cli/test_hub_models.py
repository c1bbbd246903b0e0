"""Models of timm and transformers as they are typed."""

import os

import pytest

from modelscope_cli.models import hubs
from modelscope_cli.shell.completion import name as complete_name
from modelscope_cli.shell.named_model import names_model


@pytest.mark.parametrize("command", ["summary {}", "stats {}", "predict {harbour} --model {}", "check {}"])
@pytest.mark.parametrize(
    ("typed", "package"), [("timm:resnet50d", "timm"), ("hf:google/vit-base-patch16-224", "transformers")]
)
def test_without_the_package_it_is_exit_2_and_the_line_that_installs_it(
    run, monkeypatch, command, typed, package
):
    monkeypatch.setattr(hubs, "find_spec", lambda name: None)
    outcome = run(command.replace("{}", typed), expect=2)
    assert f"'{typed}' needs the package '{package}', which is not installed" in outcome.err
    assert f"hint: pip install {package}" in outcome.err
    assert outcome.out == ""


def test_an_image_is_not_a_model_with_a_tag(run, monkeypatch):
    monkeypatch.setattr(hubs, "timm_names", lambda: ("resnet50d",))
    assert "timm:" not in run("stats resnet50d.jpg", expect=4).err


@pytest.mark.parametrize("word", ["timm:resnet50.a1_in1k", "hf:./folder", "hf:google/vit-base-patch16-224"])
def test_a_prefix_makes_a_model_of_a_word(word):
    assert names_model(word)


def test_completion_knows_the_names_after_the_prefix_only(monkeypatch):
    monkeypatch.setattr("modelscope_cli.shell.completion.timm_names", lambda: ("resnet50d", "vit_tiny"))
    assert complete_name("timm:vit") == ["timm:vit_tiny"]
    assert not any("timm" in name for name in complete_name(""))


def test_every_command_takes_one(run):
    pytest.importorskip("timm")
    tiny = "timm:test_vit -w none"
    assert "as in the model's pretrained_cfg" in run(f"predict {{harbour}} -m {tiny}").err
    run("summary timm:test_vit")
    run(f"stats {{harbour}} -m {tiny}")
    run(f"grads {{harbour}} -m {tiny} --no-save")
    run(f"check {tiny}", expect=None)


def test_a_factory_of_timm_stays_off_the_network(run, monkeypatch):
    """`MSCOPE_OFFLINE` is set for all these tests."""
    pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.devnull)
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: asked.append(args))
    outcome = run("summary timm.models:resnet18d --model-arg pretrained=true", expect=4)
    assert "cannot find the requested files in the local cache" in outcome.err
    assert asked == []
