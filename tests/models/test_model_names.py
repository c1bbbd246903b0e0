import subprocess
import sys

import pytest
from torchvision.models import list_models

from modelscope_cli.models.names import model_names, timm_names


def test_names_are_those_torchvision_lists() -> None:
    assert list(model_names()) == list_models()


def test_names_are_read_without_importing_anything_heavy() -> None:
    script = (
        "import sys; from modelscope_cli.models.names import model_names; assert 'resnet34' in model_names();"
        "heavy = {'torch', 'torchvision', 'numpy', 'PIL'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_no_torchvision_means_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelscope_cli.models.names.find_spec", lambda name: None)
    assert model_names.__wrapped__() == ()
    assert timm_names.__wrapped__() == ()


def test_names_of_timm_are_those_timm_lists() -> None:
    timm = pytest.importorskip("timm")
    assert set(timm_names()) == set(timm.list_models())
