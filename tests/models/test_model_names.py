import pytest
from torchvision.models import list_models

from modelscope_cli.models.names import model_names, timm_names


def test_names_are_those_torchvision_lists() -> None:
    assert list(model_names()) == list_models()


def test_no_torchvision_means_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelscope_cli.models.names.find_spec", lambda name: None)
    assert model_names.__wrapped__() == ()
    assert timm_names.__wrapped__() == ()


def test_names_of_timm_are_those_timm_lists() -> None:
    timm = pytest.importorskip("timm")
    assert set(timm_names()) == set(timm.list_models())
