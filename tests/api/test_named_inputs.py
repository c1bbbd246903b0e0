"""Inputs by name: the same from Python and on the command line, for every command that runs a model."""

import copy
import shlex
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from function_and_command import STAR, plain, without
from torch import Tensor, nn
from torch.utils.data import DataLoader

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell.app import run as run_argv

TOWERS = '''
import torch
from torch import nn

class Towers(nn.Module):
    """An image and words, by name only."""
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, *, pixels, tokens):
        image = self.conv(pixels).relu().mean((2, 3))
        return self.head(self.norm(image) + self.words(tokens).mean(1))

class OneDict(Towers):
    def forward(self, batch):
        return super().forward(pixels=batch["image"], tokens=batch["caption"])
'''


@pytest.fixture(autouse=True)
def towers_file(cwd: Path) -> None:
    Path("towers.py").write_text(TOWERS)


@pytest.fixture
def towers() -> dict[str, type[nn.Module]]:
    namespace: dict[str, Any] = {"__name__": "towers_of_the_caller"}
    exec(TOWERS, namespace)
    return namespace


@pytest.fixture
def model(towers) -> nn.Module:
    torch.manual_seed(0)
    return towers["Towers"]().eval()


def given(n: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.rand(n, 3, 12, 12, generator=generator)
    return {"pixels": pixels, "tokens": torch.randint(50, (n, 5), generator=generator)}


COMMANDS = {"stats": {}, "featuremaps": {"layer": "type:Conv2d"}, "grads": {}, "check": {"mode": "eval"}}


@pytest.mark.parametrize("name", COMMANDS)
def test_function_and_command_give_the_same_document(both, name, monkeypatch):
    words = " ".join(f"--{key} {value}" for key, value in COMMANDS[name].items())
    inputs = f"--input pixels={shlex.quote(STAR)} --input tokens=int64:1,6 --size 16"
    typed = both.typed(f"{name} {inputs} -m towers.py:Towers {words} --quiet")
    named = {"pixels": STAR, "tokens": "int64:1,6"}
    record = getattr(ms, name)("towers.py:Towers", named, size=16, **COMMANDS[name])
    mine = plain(record.to_dict())
    left_out = ("out_dir", "files", "contact_sheet", "maps") if "out_dir" in typed else ()
    assert without(mine, *left_out, "file") == without(typed, *left_out, "file")
    assert mine["input"]["names"] == ["pixels", "tokens"]
    assert mine["input"]["shape"] == [[1, 3, 16, 16], [1, 6]]
    assert mine["input"]["files"] == [STAR]


def test_what_is_measured_is_what_the_forward_gives(model):
    x = given()
    output = model(**x).detach()
    for inputs in (x, UserDict(x)):
        record = ms.stats(model, inputs)
        assert record.images == 3
        assert record["head"].mean == pytest.approx(float(output.mean()), rel=1e-5)
    assert [one.name for one in record.inputs] == ["pixels", "tokens"]
    predictions = ms.predict(model, x, top=1).predictions
    assert [one.top[0].index for one in predictions] == output.argmax(1).tolist()
    assert ms.summary(model, x)["conv"].output_shapes == ((3, 8, 10, 10),)


def test_gradients_are_those_of_autograd(model):
    x = given()
    loss = nn.functional.cross_entropy(model(**x), torch.tensor([2, 2, 2]))
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    record = ms.grads(model, x, target=2)
    assert record.passes == 1
    norms = {row.name: row.grad_norm for row in record.parameters}
    for (name, _), grad in zip(model.named_parameters(), wanted, strict=True):
        assert norms[name] == pytest.approx(float(grad.norm()), rel=1e-4)


def test_a_forward_of_one_dict_is_given_the_dict(towers, model, capsys):
    other = towers["OneDict"]().eval()
    other.load_state_dict(model.state_dict())
    x = given()
    renamed = {"image": x["pixels"], "caption": x["tokens"]}
    assert ms.stats(other, renamed)["head"].mean == ms.stats(model, x)["head"].mean
    assert ms.stats(other, renamed).run.input.names == ("image", "caption")
    record = ms.check(other, renamed)
    assert [one.name for one in record.inputs] == ["image", "caption"]
    assert not record.findings
    with pytest.raises(CannotRunError) as raised:
        ms.stats(other, {"picture": x["pixels"], "caption": x["tokens"]})
    assert raised.value.hint.startswith("inputs={'batch': ")
    line = "stats towers.py:OneDict -w none --input image=1,3,16,16 --input caption=int64:1,6"
    assert run_argv(line.split()) == 0
    assert "forward() takes one argument, so it gets all inputs as a dict" in capsys.readouterr().err


def test_a_loader_of_dicts_gives_named_inputs(model):
    x = given(4)
    rows = [{name: tensor[i] for name, tensor in x.items()} for i in range(4)]
    record = ms.stats(model, DataLoader(rows, batch_size=2))
    assert record.images == 4
    assert record["head"].mean == pytest.approx(float(model(**x).detach().mean()), rel=1e-5)
    assert record.run.input.names == ("pixels", "tokens")


def test_a_name_that_is_wrong_or_missing_is_reported_with_a_line_that_works(both):
    line = f"stats -m towers.py:Towers --quiet --input pixel={shlex.quote(STAR)} --input tokens=int64:1,6"
    both.said()
    for typed, message in (
        (line, "has no argument 'pixel'; it has pixels, tokens"),
        (line.replace("pixel=", "pixels=").partition(" --input tokens")[0], "needs more arguments: tokens"),
        (f"stats {STAR} -m towers.py:Towers --quiet", "needs more arguments: pixels, tokens"),
    ):
        error, hint = both.failed(typed, code=2)
        assert message in error
        assert STAR in hint
        assert both.typed(hint.removeprefix("modelscope "))["input"]["names"] == ["pixels", "tokens"]


@pytest.mark.parametrize(("typed", "message"), [
    ("--input pixels", "'--input pixels' is not NAME=SPEC"),
    ("--input =1,3", "'--input =1,3' is not NAME=SPEC"),
    ("--input pixels=1,a,3", "'a' in '--input pixels=1,a,3' is not a whole number above 0"),
    ("--input pixels=in64:1,3", "'in64' in '--input pixels=in64:1,3' is not a dtype"),
    ("--input tokens=int:2x7", "--input tokens=int64:2,7"),
    ("--input pixels=1,3,8,8 --input pixels=1,3,8,8 --input tokens=int64:1,2", "is given 2 times"),
    ("--input pixels=1,3,8,8 --input tokens=int64:1,2 --input-shape 1,3", "both give an input"),
    ("--input pixels=nowhere.jpg --input tokens=int64:1,2", "'nowhere.jpg' does not exist"),
])  # fmt: skip
def test_what_is_typed_wrong_is_quoted(both, typed, message):
    error, hint = both.failed(f"stats -m towers.py:Towers --quiet {typed}")
    assert message in f"{error} {hint}"


def test_train_mode_needs_two_images_and_says_so(towers):
    fresh = towers["Towers"]()
    for run in (ms.check, lambda model, x: ms.grads(model, x, mode="train")):
        with pytest.raises(CannotRunError, match="more than 1 value per channel") as raised:
            run(fresh, given(1))
        assert "or batch=2, with two images" in raised.value.hint
        assert run(fresh, given(2)).mode == "train"
    assert ms.check(fresh, given(1), mode="eval").mode == "eval"


class Pair(NamedTuple):
    image: Tensor
    mask: Tensor


@dataclass
class Scene:
    image: Tensor
    scale: float


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, scene, views=(), is_loud=False):
        image, mask = scene if isinstance(scene, tuple) else (scene.image * scene.scale, 1)
        assert is_loud
        return self.conv(image * mask) + sum(self.conv(view).mean() for view in views)


@pytest.mark.parametrize("kind", ["tuple", "dataclass"])
def test_nested_values_go_in_as_they_are(kind):
    x = torch.rand(2, 1, 6, 6)
    model = Nested()
    scene = Pair(x, torch.ones(2, 1, 6, 6)) if kind == "tuple" else Scene(x, 2.0)
    inputs = {"scene": scene, "views": [x, x + 1], "is_loud": True}
    record = ms.stats(model, inputs)
    image = x if kind == "tuple" else 2 * x
    of_calls = torch.stack([model.conv(one).detach() for one in (image, x, x + 1)])  # one row of all
    assert record["conv"].mean == pytest.approx(float(of_calls.mean()), rel=1e-5)
    assert (len(record), record["conv"].calls) == (1, 3)
    assert record.run.input.names[-2:] == ("views.0", "views.1")
    ms.grads(model, inputs, loss="mean")
    assert ms.diff(model, copy.deepcopy(model), inputs).is_same


@pytest.mark.parametrize("inputs", [{}, {3: torch.rand(1, 3)}, {"flag": True}])
def test_a_dict_without_names_or_tensors_is_not_an_input(inputs):
    with pytest.raises(UsageError):
        ms.stats(nn.Identity(), inputs)
