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
from modelscope_cli.records.predict import TruthReport
from modelscope_cli.records.run import BrokenKind, Share
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
    found = judged(logits / temperature, truth, batch=64)
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
    exact = (said == right).all(1).mean()
    assert found.exact_match is not None
    assert found.exact_match.value == close(exact)
    f1 = 2 * both.sum(0) / (said.sum(0) + right.sum(0))
    assert found.macro_f1 == close(f1.mean())
    assert found.micro_f1 == close(2 * both.sum() / (said.sum() + right.sum()))
    assert [row.f1 for row in found.classes] == [close(one) for one in f1]
    assert (found.kind, found.accuracy, found.ece, found.confusions) == ("labels", None, None, ())
    assert found.micro_precision == close(both.sum() / said.sum())
    assert found.micro_recall == close(both.sum() / right.sum())
    assert found.macro_precision == close((both.sum(0) / said.sum(0)).mean())
    assert found.macro_recall == close((both.sum(0) / right.sum(0)).mean())
    assert all(set(row.truth) == set(labels[int(row.image)]) for row in found.worst)
    scores = 1 / (1 + np.exp(-logits.flatten(1).double().numpy()))
    sure = np.where(said != right, np.where(said, scores, 1 - scores), -1).max(1)  # of the wrong decisions
    order = [n for n in np.argsort(-sure, kind="stable")[:24] if sure[n] >= 0]
    assert [(row.image, row.confidence) for row in found.worst] == [(str(n), close(sure[n])) for n in order]
    are_missed = [row.predicted in row.truth for row in found.worst]
    assert are_missed == [(row.predicted_label or "").startswith("not ") for row in found.worst]
    one = judged(logits, labels, scores="sigmoid", threshold=1.0)  # no class is predicted
    assert [row.predicted in row.truth for row in one.worst] == [True] * 24


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
    ([0, 1, []], CannotRunError, "does not give one class for '2'"),
    ({"0": 1, "2": 1}, CannotRunError, "has no entry for '1'"),
    ("folders", UsageError, "is not in a folder"),
    (7, UsageError, "cannot be of type int"),
    ([0, 1, 2.5], CannotRunError, "the truth has numbers, not classes; predict compares classes"),
    (torch.tensor([[0.5, 2], [3, 3], [4, 5]]), CannotRunError, "has numbers, not classes"),
    (["a", 1, 2.5], CannotRunError, "are not among the 12 classes"),
    ([[0, 1, 0], [1, 1, 0], [0, 0, 0]], UsageError, "names a class twice"),
    (torch.eye(3), UsageError, "names a class twice"),
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
    found = read_truth(file)
    assert dict(zip(found.images or (), found.words or (), strict=True)) == {
        "a.png": ("red",),
        "b.png": ("round",),
        "c.png": ("red", "round"),
        "d.png": (),
    }
    file.write_text("a.png,1,0,0\n")
    with pytest.raises(CannotRunError, match="line 1 names a class twice"):
        read_truth(file)


@pytest.mark.parametrize(
    "text", ["a.png,1.5\nb.png,2\n", "image,x,y\na.png,7,7\nb.png,NA,4e-1\n", '{"a.png": [0.5, 0.5]}']
)
def test_a_truth_of_numbers_is_refused_unless_they_are_labels(tmp_path: Path, text: str) -> None:
    file = tmp_path / "truth.csv"
    file.write_text(text)
    with pytest.raises(CannotRunError, match=r"truth.csv' has numbers, not classes") as caught:
        read_truth(file).taken_apart(["cat", "dog"])
    assert (caught.value.hint or "").startswith("--truth none --output-kind embedding   ")
    labels = ["1.5", "2", "0.5", "7", "NA", "4e-1"]
    assert read_truth(file).taken_apart(labels).words == read_truth(file).words


@pytest.mark.parametrize("text", ["[1, 2]", '["a", "b"]', '[{"image": "a.png", "label": "red"}]'])
def test_a_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "truth.json").write_text(text)
    with pytest.raises(CannotRunError, match=r"it holds a list, not \{image: class\}"):
        read_truth(tmp_path / "truth.json")


def test_a_model_of_one_value_takes_0_and_1_as_a_class(logits: Tensor) -> None:
    values = logits[:4, :1]
    with pytest.raises(CannotRunError, match="outputs one value per image") as caught:
        judged(values, [0, 1, 1, 0])
    assert (caught.value.hint or "").startswith("scores='sigmoid'")
    assert judged(values, [0, 1, 1, 0], scores="sigmoid").kind == "labels"
    with pytest.raises(CannotRunError, match="outputs one value per image") as caught:
        judged(values, [23, 41, 8, 8])
    assert (caught.value.hint or "").startswith("truth='none', output_kind='embedding'")
    rows = ms.predict(Says(), values, truth="none", output_kind="embedding").predictions
    assert [row.numbers for row in rows] == [(value,) for value in values.flatten().tolist()]


def test_classes_without_images_are_not_in_the_means_of_labels(logits: Tensor) -> None:
    found = judged(logits[:3], [[0, 1], [1], []], scores="sigmoid")
    mine = [row for row in found.classes if row.n]
    assert [row.index for row in mine] == [0, 1]
    assert found.macro_recall == close(sum(row.recall or 0 for row in mine) / 2)
    assert found.macro_precision == close(sum(row.precision or 0 for row in mine) / 2)
    assert found.macro_f1 == close(sum(row.f1 or 0 for row in mine) / 2)


_LABELS = ["red", "round", "traffic light", "noisy"]
_MEANT = {"a.png": ("red", "round"), "b.png": (), "c.png": ("noisy",)}


@pytest.mark.parametrize(("name", "text"), [
    ("t.csv", "image,labels\na.png,red|round\nb.png,\nc.png,noisy\n"),
    ("t.csv", "a.png,red;round\nb.png,\nc.png,noisy\n"),
    ("t.csv", 'filename,tags\na.png,"red, round"\nb.png,\nc.png,noisy\n'),
    ("t.csv", "a.png,red round\nb.png,\nc.png,noisy\n"),
    ("t.csv", "a.png,red,round\nb.png,\nc.png,noisy\n"),
    ("t.csv", "a.png,red\na.png,round\nb.png,\nc.png,noisy\n"),
    ("t.csv", "file_name,red,round,traffic light,noisy\na.png,1,1,0,0\nb.png,0,0,0,0\nc.png,0,0,0,1\n"),
    ("t.csv", "image,red,round,noisy\na.png,1.0,1.0,0.0\nb.png,0.0,0.0,0.0\nc.png,0.0,0.0,1.0\n"),
    ("t.csv", "Image_Path,red,round,noisy\na.png,True,True,\nb.png,False,False,False\nc.png,,,True\n"),
    ("t.csv", "a.png,\"['red', 'round']\"\nb.png,[]\nc.png,['noisy']\n"),
    ("t.csv", "image;labels\na.png;RED|Round\nb.png;\nc.png;noisy\n"),
    ("t.tsv", "image\tlabels\na.png\tred,round\nb.png\t\nc.png\tnoisy\n"),
    ("t.json", '{"a.png": ["red", "round"], "b.png": [], "c.png": "noisy"}'),
    ("t.json", '{"a.png": "red|round", "b.png": [], "c.png": ["noisy"]}'),
])  # fmt: skip
def test_files_of_several_labels_are_read_alike(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_truth(tmp_path / name).taken_apart(_LABELS)
    rows = zip(found.images or (), found.words or (), strict=True)
    assert {image: tuple(map(str.lower, map(str, words))) for image, words in rows} == _MEANT
    assert found.has_several


@pytest.mark.parametrize("word", ["traffic light", "red,white", "red|blue", "2021"])
def test_a_word_is_left_whole_if_it_is_a_label_or_its_parts_are_not(word: str) -> None:
    assert read_truth([word]).taken_apart([*_LABELS, "red,white"]).words == [(word,)]


def test_several_labels_of_a_tenth_of_the_images_are_no_mistake(logits: Tensor) -> None:
    assert judged(logits[:9], [[0, 1], *range(8)]).kind == "labels"
    with pytest.raises(CannotRunError, match="does not give one class for '0'"):
        ms.predict(Says(), logits[:11], truth=[[0, 1], *range(10)])
    with pytest.raises(CannotRunError, match="scores of the model sum to 1"):
        ms.predict(nn.Sequential(Says(), nn.Softmax(1)), logits[:2], truth=[[0, 1], [2]])


class Squashes(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.squash, self.how = nn.Sigmoid(), how
        self.layer = nn.Linear(C, C)

    def forward(self, x: Tensor) -> Any:
        return self.how(self, self.layer(x.flatten(1)))


@pytest.mark.parametrize(("how", "is_sigmoid"), [
    (lambda net, y: torch.sigmoid(y), True),
    (lambda net, y: y.sigmoid().clamp(1e-6, 1 - 1e-6), True),
    (lambda net, y: net.squash(y), True),
    (lambda net, y: {"features": y, "logits": torch.sigmoid(y).float()}, True),
    (lambda net, y: torch.cat([torch.sigmoid(part) for part in y.split(3, 1)], 1), True),
    (lambda net, y: torch.sigmoid(y) * 0.5, False),
    (lambda net, y: y * torch.sigmoid(y), False),
    (lambda net, y: torch.cat([y[:, :1].sigmoid(), y[:, 1:].clamp(0, 1)], 1), False),
    (lambda net, y: y.clamp(0, 1), False),
    (lambda net, y: 0.5 + y.tanh() / 2, False),
])  # fmt: skip
def test_the_probabilities_of_a_sigmoid_are_no_logits(logits: Tensor, how: Any, is_sigmoid: bool) -> None:
    net = Squashes(how).eval()
    record = ms.predict(net, logits[:5], top=C)
    assert record.activation == ("sigmoid" if is_sigmoid else "softmax")
    if is_sigmoid:
        with torch.no_grad():
            said = net(logits[:5])
        said = said["logits"] if isinstance(said, dict) else said
        for one, row in zip(record.predictions, said, strict=True):
            assert [guess.score for guess in one.top] == close(row.sort(descending=True).values.tolist())
