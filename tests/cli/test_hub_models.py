"""Models of timm and transformers as they are typed."""

import os

import pytest

from modelscope_cli.models import hubs


@pytest.mark.parametrize("command", ["summary {}", "predict {harbour} --model {}"])
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


def test_a_factory_of_timm_stays_off_the_network(run, monkeypatch):
    """`MSCOPE_OFFLINE` is set for all these tests."""
    pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", os.devnull)
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: asked.append(args))
    outcome = run("summary timm.models:resnet18d --model-arg pretrained=true", expect=4)
    assert "cannot find the requested files in the local cache" in outcome.err
    assert asked == []
