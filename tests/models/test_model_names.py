import pytest
from torchvision.models import list_models

from modelscope_cli.models.names import class_with, file_with, model_names, timm_names

FILES = {
    "heads.py": """
class Head(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(4, 2)
""",
    "nets.py": """
class Base(nn.Module):
    def __init__(self):
        self.stem, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
class Deep(Base):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential()
class Lit(pl.LightningModule):
    def __init__(self):
        self.net = Deep()
""",
    "broken.py": "class Head(nn.Module:",
}


def test_names_are_those_torchvision_lists() -> None:
    assert list(model_names()) == list_models()


def test_no_torchvision_means_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelscope_cli.models.names.find_spec", lambda name: None)
    assert model_names.__wrapped__() == ()
    assert timm_names.__wrapped__() == ()


def test_names_of_timm_are_those_timm_lists() -> None:
    timm = pytest.importorskip("timm")
    assert set(timm_names()) == set(timm.list_models())


@pytest.mark.parametrize(("tensors", "found"), [
    ("fc.weight fc.bias", "heads.py:Head"),
    ("stem.weight fc.weight", "nets.py:Base"),
    ("stem.weight block.0.weight fc.weight", "nets.py:Deep"),
    ("module.stem.weight module.fc.weight", "nets.py:Base"),
    ("net.stem.weight net.block.0.weight", "nets.py:Lit"),
    ("0.weight 2.weight", "FILE.py:NAME"),
    ("fc.weight neck.weight", "FILE.py:NAME"),
])  # fmt: skip
def test_the_class_whose_attributes_tensors_are_named_after(tensors, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    assert class_with(tensors.split()) == found
    assert str(file_with("Deep")) == "nets.py"
    assert file_with("Nothing") is None
