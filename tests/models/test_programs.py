"""Models that are not written in layers one can hook: TorchScript, torch.export, torch.compile; lazy layers."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import Told
from PIL import Image
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, ModelscopeError
from modelscope_cli.shell.app import run

X = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.again, self.fc = nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.again(self.relu(self.norm(self.conv(x))))).mean((2, 3)))


def small() -> Small:
    torch.manual_seed(0)
    return Small().eval()


MACS = 4 * 3 * 9 * 100 + 4 * 4 * 9 * 64 + 4 * 3


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(small())


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(small(), X)


class Around(nn.Module):
    """A program inside a model of layers."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("make", [scripted, traced, lambda: Around(scripted())])
@pytest.mark.parametrize("command", [ms.stats, ms.summary, ms.check])
def test_a_script_is_refused_in_words(make: Any, command: Any) -> None:
    with pytest.raises(CannotRunError, match="is TorchScript, which does not run hooks"):
        command(make(), X)


@cache
def program() -> Any:
    return torch.export.export(small(), (X,))


def test_an_exported_program_runs_in_the_one_mode_it_has() -> None:
    model, told = program().module(), Told()
    (row,) = ms.stats(model, X, progress=told).layers
    assert row.shape == (2, 3)
    assert any("exported program" in note for note in told.notes)
    record = ms.summary(model, X)
    assert record.totals.macs == 2 * MACS
    assert {row.name for row in record.layers if not row.executed} == {"conv", "norm", "again", "fc"}
    checked = ms.check(model, X)
    assert not checked.findings
    assert any("the mode it was exported in" in (rule.reason or "") for rule in checked.rules)
    with pytest.raises(CannotRunError, match="not in train mode"):
        ms.stats(model, X, mode="train")


def test_the_file_of_a_script_is_named_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(scripted(), path)
    record = ms.weights(path)
    assert record.format.startswith("TorchScript")
    assert [one.message for one in record.warnings] == [
        "a TorchScript program: torch.jit.load would run its code, which was not looked at"
    ]
    with pytest.raises(CannotRunError, match="a program of TorchScript") as caught:
        ms.summary(str(path))
    assert "the Python module that it was made from" in (caught.value.hint or "")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs: of any batch, of two images, of train mode, of two inputs."""
    folder, batch = tmp_path_factory.mktemp("exported"), {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    programs = {
        "any": torch.export.export(small(), (X,), dynamic_shapes=batch),
        "two": program(),
        "train": torch.export.export(small().train(), (X,), dynamic_shapes=batch),
        "pair": torch.export.export(Pair().eval(), (X, torch.ones(2, 5))),
        "codes": torch.export.export(
            nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), (torch.ones(2, 5).long(),)
        ),
        "sizes": torch.export.export(
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()),
            (X[:, :1],),
            dynamic_shapes=({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},),
        ),
    }
    for name, one in programs.items():
        torch.export.save(one, folder / f"{name}.pt2")
    return folder


class Pair(Small):
    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return super().forward(x) + more[:, :3]


@pytest.mark.parametrize("command", [ms.stats, ms.grads, ms.ablate, ms.predict, ms.featuremaps])
def test_the_layers_of_a_program_are_those_it_was_exported_from(exported: Path, command: Any) -> None:
    x = X[:1] if command is ms.featuremaps else X
    found, plain = command(str(exported / "any.pt2"), x), command(small(), x)
    for one, other in zip(found.labelled(), plain.labelled(), strict=True):
        assert one[0] == other[0]
        for name in ("type", "mean", "norm", "kl_divergence", "max"):
            if isinstance(value := getattr(other[1], name, None), float):
                assert getattr(one[1], name) == close(value)
            else:
                assert getattr(one[1], name, None) == value


def test_a_program_is_summarised_and_checked_with_its_own_input(exported: Path) -> None:
    record = ms.summary(str(exported / "any.pt2"))
    assert record.totals.macs == MACS
    assert [row.type for row in record.layers[:3]] == ["Small", "Conv2d", "BatchNorm2d"]
    assert record.run.input.shape == ((1, 3, 12, 12),)
    assert ms.summary(str(exported / "two.pt2")).run.input.shape == ((2, 3, 12, 12),)
    assert not ms.check(str(exported / "any.pt2"), X).findings
    assert [row.name for row in ms.stats(str(exported / "pair.pt2")).layers][-1] == "fc"
    assert ms.stats(str(exported / "codes.pt2")).run.input.shape == ((2, 5),)
    assert ms.stats(str(exported / "sizes.pt2")).run.input.shape == ((1, 1, 224, 224),)


@pytest.mark.parametrize(("file", "keywords", "words", "hint"), [
    ("any", {"mode": "train"}, "not in train mode", "mode"),
    ("any", {"dtype": "float16"}, "is run as it is", "dtype"),
    ("two", {"inputs": X[:1]}, "a batch size of 2, but got 1", "input_shape=(2, 3, 12, 12)"),
    ("none", {}, "no model file", "ls"),
])  # fmt: skip
def test_what_a_program_does_not_take_is_said(
    exported: Path, file: str, keywords: Any, words: str, hint: str
) -> None:
    with pytest.raises(ModelscopeError, match=words) as caught:
        ms.stats(str(exported / f"{file}.pt2"), **keywords)
    assert hint in (caught.value.hint or "")


def test_a_program_keeps_the_mode_it_was_exported_in(exported: Path, tmp_path: Path) -> None:
    (notice,) = ms.stats(str(exported / "train.pt2"), X).run.warnings
    assert notice.message.startswith("exported in train mode: batch_norm")
    assert not ms.stats(str(exported / "any.pt2"), X).run.warnings
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for n in range(3):
            Image.new("RGB", (12, 12), (n, 0, 0)).save(tmp_path / name / f"{n}.png")
    with pytest.raises(CannotRunError, match="in the mode it was exported in"):
        ms.train(str(exported / "any.pt2"), tmp_path)


def test_a_compiled_model_is_looked_at_uncompiled() -> None:
    told = Told()
    compiled = torch.compile(small(), backend=_refuse)
    record = ms.stats(compiled, X, progress=told)
    plain = ms.stats(small(), X)
    assert [(row.name, row.mean) for row in record.layers] == [(row.name, row.mean) for row in plain.layers]
    assert "torch.compile: the model is inspected uncompiled" in told.notes
    inside = Around(torch.compile(small(), backend=_refuse)).eval()
    assert [row.type for row in ms.stats(inside, X).layers] == [*(row.type for row in plain.layers), "Linear"]
    with pytest.raises(Exception, match="was compiled"):
        compiled(X)  # for its owner it is as it was


def _refuse(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("was compiled")


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("command", [ms.stats, ms.grads, ms.check, ms.summary])
def test_lazy_layers_take_their_shapes_from_one_run_of_a_copy(command: Any) -> None:
    model, told = Lazy(), Told()
    record = command(model, X, progress=told)
    assert record.to_dict()
    assert any("a first run of a copy" in note for note in told.notes)
    assert torch.nn.parameter.is_lazy(model.conv.weight)


class Gives(Small):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        super().forward(x)
        return self.output


@pytest.mark.parametrize("output", [None, [], {}, "cat", 3])
def test_what_gives_no_tensor_is_looked_at_all_the_same(output: Any) -> None:
    model = Gives(output).eval()
    assert len(ms.stats(model, X).layers) == 6
    assert not ms.check(model, X, select="MS4").findings
    with pytest.raises(CannotRunError, match="without tensors"):
        ms.grads(model, X)


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("--input-shape 3,3,12,12", "a batch size of 2, but got 3", "--input-shape 2,3,12,12"),
        ("--input-shape 2,3,10,12", "dimension 2 of 12, but got 10", "--input-shape 2,3,12,12"),
        ("image.png image.png --batch 2 --size 16", "dimension 2 of 12, but got 16", "--size 12,12"),
    ],
)
@pytest.mark.parametrize("sides", ["stats two.pt2", "diff net.py:small two.pt2"])
def test_a_size_that_the_export_fixed_is_named_and_mended(
    sides: str,
    given: str,
    said: str,
    hint: str,
    exported: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(exported)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Image.new("RGB", (20, 20)).save("image.png")
    Path("net.py").write_text("from test_programs import small\n")
    assert run([*sides.split(), *given.split()]) == 4
    error, _, line = capsys.readouterr().err.rpartition("hint: modelscope ")
    assert f"exported for {said}" in error
    assert hint in line
