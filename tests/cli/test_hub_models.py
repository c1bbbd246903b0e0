"""Models of timm and transformers as they are typed."""

import os

import pytest
import warm

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


def test_a_name_that_only_timm_has_is_answered_with_the_prefix(run, monkeypatch):
    monkeypatch.setattr(hubs, "timm_names", lambda: ("resnet50d",))
    for line in ("summary resnet50d", "stats resnet50d"):
        assert "did you mean timm:resnet50d" in run(line, expect=2).err


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


def test_nothing_of_them_is_imported_for_other_models():
    """What a torchvision model needs, and a list of names of timm, import neither library."""
    script = (
        "import sys; import modelscope_cli as ms; from modelscope_cli.models.names import timm_names; timm_names();"
        "ms.summary('alexnet'); found = {'timm', 'transformers', 'huggingface_hub'} & set(sys.modules);"
        "assert not found, found"
    )
    done = warm.run("-c", script)
    assert done.returncode == 0, done.stderr


def test_the_list(run):
    timm = pytest.importorskip("timm")
    assert set(run("models timm:resnet50").column("name")) == {
        f"timm:{name}" for name in timm.list_models("*resnet50*")
    }
    assert "timm models" in run("models timm:vit_tiny* --format table").out
    assert "modelscope models timm:" in run("models timm:of_nobody", expect=2).err


def test_every_command_takes_one(run):
    pytest.importorskip("timm")
    tiny = "timm:test_vit -w none"
    assert "as in the model's pretrained_cfg" in run(f"predict {{harbour}} -m {tiny}").err
    run("summary timm:test_vit")
    run(f"stats {{harbour}} -m {tiny}")
    run(f"grads {{harbour}} -m {tiny} --no-save")
    run(f"check {tiny}", expect=None)


def test_a_factory_of_theirs_stays_off_the_network(run, monkeypatch):
    """`MSCOPE_OFFLINE` is set for all these tests."""
    pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.devnull)
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: asked.append(args))
    outcome = run("summary timm.models:resnet18d --model-arg pretrained=true", expect=4)
    assert "cannot find the requested files in the local cache" in outcome.err
    assert asked == []
