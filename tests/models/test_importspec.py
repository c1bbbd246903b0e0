import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import ModelRequest

CODE = '''
import dataclasses, random, sys
import numpy as np
import torch
from torch import nn

print("chatty at import")

@dataclasses.dataclass
class Config:
    width: int = 3

class Net(nn.Module):
    """One linear layer."""
    def __init__(self, width: int = 3, num_classes: int = 2, act: str = "relu"):
        super().__init__()
        print("chatty in __init__")
        self.fc = nn.Linear(width, num_classes)
        self.extra = random.random(), float(np.random.rand())
    def forward(self, x):
        return self.fc(x)

class Zoo:
    class Inner(Net):
        pass

def make(config=Config()):
    return Net(config.width)

def needs(depth):
    return Net(depth)

def helper():
    from helper_beside import WIDTH
    return Net(WIDTH)

def reads_values():
    net = Net()
    net.scale = float(net.fc.weight.abs().sum())
    return net

def broken():
    return nn.Linear(3, "4")

def leaves():
    sys.exit("bye")

instance = Net(width=5)
number = 3
not_a_model = dict
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own_net.py").write_text(CODE)
    (tmp_path / "helper_beside.py").write_text("WIDTH = 7\n")
    return tmp_path / "own_net.py"


def load(spec: object, *model_args: str, **kwargs: Any) -> LoadedModel:
    return load_model(ModelRequest(str(spec), model_args=model_args, device="cpu", **kwargs))


def rejected(kind: type[ModelscopeError], spec: object, *model_args: str, **kwargs: Any) -> ModelscopeError:
    with pytest.raises(kind) as caught:
        load(spec, *model_args, **kwargs)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_class_is_built_and_described(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load(f"{file}:Net")
    assert (loaded.info.source, loaded.info.class_name, loaded.family) == ("import", "Net", "custom")
    assert loaded.info.name == f"{file}:Net"
    assert (loaded.info.weights.resolved, loaded.info.weights.origin) == (
        "random",
        "the model's own initialisation",
    )
    assert loaded.transforms is None
    assert loaded.categories is None
    assert not loaded.module.training
    output = capsys.readouterr()
    assert output.out == ""
    assert "chatty at import" in output.err


def test_arguments_and_number_of_classes(file: Path) -> None:
    loaded = load(f"{file}:Net", "width=4", "act=gelu", num_classes=6)
    assert loaded.module.fc.weight.shape == (6, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("attribute", "width"), [("make", 3), ("Zoo.Inner", 3), ("helper", 7), ("instance", 5)]
)
def test_factories_dotted_names_and_instances(file: Path, attribute: str, width: int) -> None:
    loaded = load(f"{file}:{attribute}")
    assert loaded.module.fc.in_features == width  # type: ignore[union-attr]
    is_class = attribute == "Zoo.Inner"
    assert loaded.info.weights.resolved == ("random" if is_class else "own")


def test_weights_that_a_factory_loaded_are_not_called_random(tmp_path: Path) -> None:
    code = "from torch import nn\ndef trained():\n    return nn.Linear(2, 2)\n"
    (tmp_path / "factory.py").write_text(code)
    loaded = load(f"{tmp_path / 'factory.py'}:trained")
    assert loaded.notes[0] == "weights: as set by trained (seed 0)"
    assert "random" not in loaded.info.heading


def test_a_fill_is_skipped_also_where_its_tensor_is_a_keyword(tmp_path: Path) -> None:
    code = "from torch import nn\nclass Net(nn.Linear):\n    def reset_parameters(self):\n"
    (tmp_path / "fills.py").write_text(f"{code}        nn.init.normal_(tensor=self.weight)\n")
    spec = f"{tmp_path / 'fills.py'}:Net"
    skeleton = load_skeleton(ModelRequest(model=spec, model_args=("in_features=2", "out_features=3")))
    assert skeleton.module.weight.is_meta


def test_modules_are_imported_from_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = file.parent / "mscope_test_package"
    package.mkdir()
    (package / "net.py").write_text(CODE)
    monkeypatch.chdir(file.parent)
    monkeypatch.delitem(sys.modules, "mscope_test_package", raising=False)
    before = list(sys.path)
    assert load("mscope_test_package.net:Net").info.class_name == "Net"
    assert sys.path == before
    for name in ("mscope_test_package", "mscope_test_package.net"):
        sys.modules.pop(name)


def test_the_seed_decides_and_nobody_elses_random_numbers_change(file: Path) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    first, second, other = (load(f"{file}:Net", seed=seed).module for seed in (1, 1, 2))
    assert torch.equal(first.fc.weight, second.fc.weight)  # type: ignore[union-attr, arg-type]
    assert not torch.equal(first.fc.weight, other.fc.weight)  # type: ignore[union-attr, arg-type]
    assert first.extra == second.extra != other.extra
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # type: ignore[index]


def test_a_skeleton_has_no_values(file: Path) -> None:
    skeleton = load_skeleton(ModelRequest(f"{file}:Net", model_args=("width=9",)))
    assert skeleton.module.fc.weight.is_meta  # type: ignore[union-attr]
    assert (skeleton.device.type, skeleton.info.weights.origin) == ("meta", "meta")
    assert not skeleton.warnings


@pytest.mark.parametrize("attribute", ["reads_values", "instance"])
def test_what_cannot_be_built_without_values_is_built_with_them(file: Path, attribute: str) -> None:
    skeleton = load_skeleton(ModelRequest(f"{file}:{attribute}"))
    assert skeleton.device.type == "cpu"
    assert [warning.code for warning in skeleton.warnings] == ["meta_fallback"]
    assert skeleton.info.weights.resolved == "own"


@pytest.mark.parametrize(
    ("attribute", "near"), [("net", "Net"), ("Zoo.Iner", "Inner"), ("", ""), ("Net.", "")]
)
def test_missing_attribute_names_the_nearest(file: Path, attribute: str, near: str) -> None:
    error = rejected(UsageError, f"{file}:{attribute}")
    assert f"'{file}:{attribute}'" in error.message
    assert near in error.message
    meant = (*attribute.rpartition(".")[:2], near)
    expected = f"did you mean {file}:{''.join(meant)}" if near else f"--model {file}:Net"
    assert (error.hint or "").startswith(expected)


@pytest.mark.parametrize(("attribute", "model_args", "said"), [
    ("Net", ("widht=4",), "did you mean width"),
    ("needs", (), "depth"),
    ("instance", ("width=4",), "already built"),
])  # fmt: skip
def test_arguments_it_does_not_take(
    file: Path, attribute: str, model_args: tuple[str, ...], said: str
) -> None:
    error = rejected(UsageError, f"{file}:{attribute}", *model_args)
    assert f"'{file}:{attribute}'" in error.message
    assert said in error.message


@pytest.mark.parametrize(("code", "said"), [
    ("import torch\n\nraise ValueError('two\\nlines')\n", "ValueError: two lines at {file}:3"),
    ("def f(:\n", "SyntaxError: invalid syntax ({name}, line 1) at {file}:1"),
    ("import no_such_module_here\n", "ModuleNotFoundError: No module named 'no_such_module_here' at {file}:1"),
    ("import sys\nsys.exit(3)\n", "SystemExit: 3 at {file}:2"),
    ("assert False\n", "AssertionError at {file}:1"),
    ("import helper_beside\n", "ZeroDivisionError: division by zero at {folder}/helper_beside.py:2"),
    ("import json\njson.loads('{{')\n", "JSONDecodeError: Expecting property name"),
])  # fmt: skip
def test_an_import_that_raises_says_where(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "helper_beside.py").write_text("x = 1\nx / 0\n")
    sys.modules.pop("helper_beside", None)
    file = tmp_path / "bad_net.py"
    file.write_text(code)
    error = rejected(CannotRunError, f"{file}:Net")
    assert error.message.startswith(f"importing '{file}:Net' raised ")
    assert said.format(file=file, name=file.name, folder=tmp_path) in error.message
    assert f"{tmp_path}" in error.message.partition(" at ")[2]
    assert not any(str(file) == getattr(module, "__file__", None) for module in list(sys.modules.values()))


@pytest.mark.parametrize(("attribute", "line"), [("broken", "return nn.Linear"), ("leaves", "sys.exit")])
def test_a_constructor_that_raises_says_where(file: Path, attribute: str, line: str) -> None:
    number = next(i for i, text in enumerate(CODE.splitlines(), 1) if line in text)
    error = rejected(CannotRunError, f"{file}:{attribute}")
    assert error.message.startswith(f"building '{file}:{attribute}' raised ")
    assert error.message.endswith(f" at {file}:{number}")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package with imports of its own parts, in a folder that is not the current one."""
    name = f"pkg_{tmp_path.name}".replace("-", "_")
    root = tmp_path / name
    (root / "sub").mkdir(parents=True)
    (root / "parts.py").write_text("from torch import nn\nclass Block(nn.Linear):\n    pass\n")
    (root / "model.py").write_text(PACKAGED)
    (root / "sub" / "deep.py").write_text(
        "def build():\n    from ..parts import Block\n    return Block(2, 3)\n"
    )
    yield root
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


PACKAGED = """
from .parts import Block

def build():
    return Block(2, 3)
"""


@pytest.mark.parametrize("has_init", [True, False])
@pytest.mark.parametrize("file", ["model.py", "sub/deep.py"])
def test_a_file_of_a_package_imports_its_neighbours(package: Path, has_init: bool, file: str) -> None:
    if has_init:
        (package / "__init__.py").write_text("")
        (package / "sub" / "__init__.py").write_text("")
    path = list(sys.path)
    module = load_model(ModelRequest(f"{package / file}:build", device="cpu")).module
    assert type(module).__name__ == "Block"
    assert type(module).__module__ == f"{package.name}.parts"
    assert sys.path == path
