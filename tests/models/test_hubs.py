"""What is said of models of other libraries where those are not installed, and that they stay off the network."""

import os
import sys
from types import SimpleNamespace

import pytest

from modelscope_cli.errors import UsageError
from modelscope_cli.models import hubs
from modelscope_cli.models.catalogue import list_models
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.hubs import close_hubs, split_hub
from modelscope_cli.models.request import ModelRequest


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "find_spec", lambda name: None)
    monkeypatch.setattr(hubs, "timm_names", tuple)


@pytest.fixture
def some_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timm that knows two names; nothing of it can be imported."""
    monkeypatch.setattr(hubs, "find_spec", lambda name: SimpleNamespace(origin=None))
    monkeypatch.setattr(hubs, "timm_names", lambda: ("resnet50d", "vit_tiny_patch16_224"))


@pytest.mark.parametrize(("typed", "parts"), [
    ("timm:resnet50.a1_in1k", ("timm", "resnet50.a1_in1k")),
    ("hf:google/vit-base-patch16-224", ("hf", "google/vit-base-patch16-224")),
    ("hf:./folder", ("hf", "./folder")),
    ("timm.models:resnet50d", ("", "timm.models:resnet50d")),
    ("net.py:Net", ("", "net.py:Net")),
    ("resnet34", ("", "resnet34")),
])  # fmt: skip
def test_a_prefix_names_a_hub(typed: str, parts: tuple[str, str]) -> None:
    assert split_hub(typed) == parts


@pytest.mark.usefixtures("no_packages")
def test_a_list_of_models_needs_the_package_too() -> None:
    with pytest.raises(UsageError, match="'timm:vit' needs the package 'timm'"):
        list_models("timm:vit")


@pytest.mark.usefixtures("some_timm")
def test_a_mistyped_name_is_answered_with_the_near_one() -> None:
    with pytest.raises(UsageError, match="did you mean timm:resnet50d"):
        check_request(ModelRequest("timm:resnet50b"))


@pytest.mark.usefixtures("some_timm")
def test_a_tag_is_not_part_of_the_name() -> None:
    assert check_request(ModelRequest("timm:resnet50d.ra2_in1k"))


@pytest.mark.parametrize("typed", ["resnet50d", "resnet50d.ra2_in1k"])
@pytest.mark.usefixtures("some_timm")
def test_a_name_that_only_timm_has_is_answered_with_the_prefix(typed: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean timm:{typed}") as caught:
        check_request(ModelRequest(typed))
    assert caught.value.hint == f"--model timm:{typed}"


@pytest.mark.parametrize("is_imported", [True, False])
def test_offline_closes_the_hubs(is_imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    constants = SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    if not is_imported:
        monkeypatch.delitem(sys.modules, "huggingface_hub.constants")
    close_hubs(is_offline=False)
    assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("0", False)
    close_hubs(is_offline=True)
    assert (os.environ["HF_HUB_OFFLINE"], constants.HF_HUB_OFFLINE) == ("1", is_imported)
