"""`predict --truth` against figures computed by NumPy, laws, and a network whose accuracy is known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.truth import read_truth
from modelscope_cli.records.predict import Share, TruthReport
from modelscope_cli.records.run import BrokenKind
from samples.dataset import CLASSES, Shapes

SAMPLES = Path(__file__).parents[2] / "samples"
N, C = 211, 12


class Says(nn.Module):
    """Gives as scores what it is given as an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.fixture(scope="module")
def logits() -> Tensor:
    return 2 * torch.randn(N, C, 1, 1, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def truth(logits: Tensor) -> list[int]:
    """Half of it right, and no image of the last class."""
    drawn = torch.randint(0, C - 1, (N,), generator=torch.Generator().manual_seed(1))
    best = logits.flatten(1).argmax(1)
    return torch.where((torch.arange(N) % 2 == 0) & (best < C - 1), best, drawn).tolist()


def judged(logits: Tensor, truth: Any, **keywords: Any) -> TruthReport:
    report = ms.predict(Says(), logits, truth=truth, **keywords).truth
    assert report is not None
    return report


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def macro(wanted: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Precision and recall as scikit-learn 1.7 has them with `average="macro", zero_division=0`."""
    kinds = np.union1d(wanted, predicted)
    both = np.array([((wanted == kind) & (predicted == kind)).sum() for kind in kinds])
    said, true = (np.array([(labels == kind).sum() for kind in kinds]) for labels in (predicted, wanted))
    return float((both / np.maximum(said, 1)).mean()), float((both / np.maximum(true, 1)).mean())


def test_accuracy_classes_and_confusions_are_those_of_a_confusion_matrix(
    logits: Tensor, truth: list[int]
) -> None:
    found = judged(logits, truth, batch=50)
    scores, wanted = logits.flatten(1).numpy(), np.array(truth)
    predicted = scores.argmax(1)
    matrix = np.zeros((C, C), int)
    np.add.at(matrix, (wanted, predicted), 1)
    right = matrix.diagonal()
    assert found.accuracy is not None
    assert found.top5_accuracy is not None
    assert found.accuracy.value == close(right.sum() / N)
    above = (scores > scores[np.arange(N), wanted][:, None]).sum(1)
    assert found.top5_accuracy.value == close((above < 5).mean())
    rows = [(row.n, row.predicted, row.correct) for row in found.classes]
    assert rows == list(zip(matrix.sum(1).tolist(), matrix.sum(0).tolist(), right.tolist(), strict=True))
    assert found.classes[-1].recall is None
    assert found.classes[0].precision == close(right[0] / matrix[:, 0].sum())
    assert (found.macro_precision, found.macro_recall) == tuple(map(close, macro(wanted, predicted)))
    np.fill_diagonal(matrix, 0)
    pairs = {(row.truth, row.predicted): row.count for row in found.confusions}
    most = sorted(matrix[matrix > 0], reverse=True)[:100]
    assert [row.count for row in found.confusions] == most
    assert all(matrix[pair] == count for pair, count in pairs.items())


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_calibration_error_is_that_of_its_definition(
    logits: Tensor, truth: list[int], temperature: float
) -> None:
    found = judged(logits, truth, batch=64, temperature=temperature)
    scores = softmax(logits.flatten(1).double().numpy() / temperature)
    confidence, right = scores.max(1), scores.argmax(1) == truth
    edges = np.linspace(0, 1, 16)
    error = 0.0
    for low, high, row in zip(edges[:-1], edges[1:], found.bins, strict=True):
        inside = (confidence > low) & (confidence <= high)
        assert row.n == inside.sum()
        if row.n:
            error += row.n / N * abs(right[inside].mean() - confidence[inside].mean())
            assert row.accuracy == close(right[inside].mean())
    assert found.ece == close(error)


def test_the_worst_are_those_of_a_full_sort_whatever_the_batch(logits: Tensor, truth: list[int]) -> None:
    scores = softmax(logits.flatten(1).double().numpy())
    wrong = np.flatnonzero(scores.argmax(1) != truth)
    order = sorted(wrong, key=lambda n: -scores[n].max())[:24]
    for batch in (7, N):
        found = judged(logits, truth, batch=batch)
        assert [row.image for row in found.worst] == [str(n) for n in order]
        assert [row.truth for row in found.worst] == [(truth[n],) for n in order]
    assert found.worst[0].confidence == close(scores[order[0]].max())


def test_wilsons_interval_holds_the_roots_of_its_equation() -> None:
    """Its ends are where |share - p| is z standard errors of p itself."""
    for count, n in ((3, 10), (0, 5), (40, 40), (923, 1000)):
        found, z = Share.of(count, n), 1.959963984540054
        for p in (found.low, found.high):
            if 0 < p < 1:
                assert abs(count / n - p) == close(z * (p * (1 - p) / n) ** 0.5)
    assert Share.of(0, 5).low == 0
    assert Share.of(40, 40).high == 1


def test_several_labels_have_no_accuracy_and_count_every_decision(logits: Tensor) -> None:
    on = torch.rand(N, C, generator=torch.Generator().manual_seed(2)) < 0.2
    labels = [row.nonzero()[:, 0].tolist() for row in on]
    found = judged(logits, labels, scores="sigmoid", threshold=0.3, batch=60)
    said, right = 1 / (1 + np.exp(-logits.flatten(1).double().numpy())) >= 0.3, on.numpy()
    both = said & right
    assert (found.kind, found.accuracy, found.ece, found.confusions) == ("labels", None, None, ())
    assert found.micro_precision == close(both.sum() / said.sum())
    assert found.micro_recall == close(both.sum() / right.sum())
    assert found.macro_precision == close((both.sum(0) / said.sum(0)).mean())
    assert found.macro_recall == close((both.sum(0) / right.sum(0)).mean())
    assert all(set(row.truth) == set(labels[int(row.image)]) for row in found.worst)
    assert all(row.predicted not in row.truth for row in found.worst)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    for n, (image, label) in enumerate(Shapes(12, seed=9, size=64)):
        name = CLASSES[label].upper() if label % 2 else str(label)  # a label in another case, or an index
        (folder / name).mkdir(exist_ok=True)
        image.save(folder / name / f"{n}.png")
    (folder / "README.txt").touch()
    (folder / ".cache").mkdir()
    return folder


def squeezenet() -> Any:
    return ms.load("squeezenet1_1", checkpoint=SAMPLES / "shapes_squeezenet1_1.safetensors", device="cpu")


def test_folders_a_file_a_mapping_and_a_list_say_the_same(shapes: Path, tmp_path: Path) -> None:
    model = squeezenet()
    files = sorted(shapes.glob("*/*.png"))
    classes = [label for file in files for label in [Shapes(12, seed=9, size=64)[int(file.stem)][1]]]
    by_label = [CLASSES[label] for label in classes]
    (shapes / "truth.csv").write_text(
        "image,class\n"
        + "".join(f"{file.name},{label}\n" for file, label in zip(files, by_label, strict=True))
    )
    named = {str(file): label for file, label in zip(files, by_label, strict=True)}
    (tmp_path / "truth.json").write_text(json.dumps(named))
    lines = [f"{file.relative_to(shapes)}\t{label}" for file, label in zip(files, classes, strict=True)]
    (shapes / "truth.tsv").write_text("\n".join(lines))
    out = tmp_path / "judged"
    record = ms.predict(model, shapes, truth="folders", size=64, batch=5, out=out)
    assert {path.name for path in out.iterdir()} == {"blocks", "run.json"}
    record = record.save(out)
    assert record.truth is not None
    guesses = ms.predict(model, shapes, size=64, batch=5, top=1).predictions
    right = [guess.top[0].index == label for guess, label in zip(guesses, classes, strict=True)]
    assert record.truth.accuracy == Share.of(sum(right), 12)
    for given in (shapes / "truth.csv", tmp_path / "truth.json", shapes / "truth.tsv", named, classes):
        assert ms.predict(model, shapes, truth=given, size=64, batch=5).truth == record.truth
    assert {path.name for path in out.iterdir()} == {*record.files, "blocks", "run.json"}
    assert ("worst.png" in record.files) == (sum(right) < 12)
    assert record.predictions == ()
    assert record["accuracy"].value == record.truth.accuracy.value
    assert record.plot().axes


@pytest.mark.parametrize(("truth", "error", "message"), [
    ([0, 1], CannotRunError, "has 2 entries, but there are 3 images"),
    (["0", "1", "99"], CannotRunError, "'99' is not among the 12 classes"),
    ([0, 1, -1], CannotRunError, "'-1' is not among"),
    ([0, 1, [2, 3]], CannotRunError, "does not give one class for '2'"),
    ({"0": 1, "2": 1}, CannotRunError, "has no entry for '1'"),
    ("folders", UsageError, "is not in a folder"),
    (7, UsageError, "cannot be of type int"),
    ([0, 1, 2.5], UsageError, "2.5 is not a class"),
    ([[0, 1, 0], [1, 1, 0], [0, 0, 0]], UsageError, "names a class twice"),
    (torch.eye(3), UsageError, "two dimensions"),
    ("no such file.csv", CannotRunError, "cannot be read"),
])  # fmt: skip
def test_what_is_unknown_is_named(logits: Tensor, truth: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ms.predict(Says(), logits[:3], truth=truth)


def test_scores_that_are_not_numbers_are_neither_right_nor_wrong(logits: Tensor) -> None:
    broken = logits[:3].clone()
    broken[1, 4] = torch.nan
    record = ms.predict(Says(), broken, truth=[0, 1, 2])
    others = judged(broken[[0, 2]], [0, 2])
    assert record.truth == replace(
        others, not_judged=(BrokenKind("NaN", 1, ("1",)),), worst=record.truth.worst
    )
    (warning,) = [one for one in record.run.warnings if one.code == "not-judged"]
    assert warning.message == "1 of 3 images not judged because of their scores: 1 NaN ('1')"
    assert judged(broken, [0, 1, 2], batch=1) == record.truth
    with pytest.raises(CannotRunError, match="scores are NaN for '0': nothing can be judged"):
        ms.predict(Says(), broken[1:2], truth=[0])


def test_columns_of_0_and_1_are_those_of_the_classes_above_them(tmp_path):
    file = tmp_path / "truth.csv"
    file.write_text("image,red,round\na.png,1,0\nb.png,0,1\nc.png,1,1\nd.png,0,0\n")
    assert read_truth(file).by_name == {
        "a.png": ("red",),
        "b.png": ("round",),
        "c.png": ("red", "round"),
        "d.png": (),
    }
    file.write_text("a.png,1,0,0\n")
    with pytest.raises(CannotRunError, match="names a class twice"):
        read_truth(file)
