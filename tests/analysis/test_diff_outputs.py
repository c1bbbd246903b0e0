"""`diff` of two architectures: what both predict for the same images."""

import warnings
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from PIL import Image
from scipy.stats import binomtest
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.report.diff.table import diff_sheet


class Wrapped(nn.Module):
    """Another architecture, by the names of its layers, with the same or another output."""

    def __init__(self, net, names=(), after=None):
        super().__init__()
        self.inner, self.names, self.after = net, names, after or nn.Identity()

    def forward(self, x):
        out = self.after(self.inner(x))
        return {self.names[0]: x.flatten(1), self.names[1]: out} if self.names else out


@pytest.fixture
def images(tmp_path):
    files = [tmp_path / f"{n}.png" for n in range(12)]
    noise = torch.randn(12, 32, 32, 3, generator=torch.Generator().manual_seed(0))
    for n, file in enumerate(files):
        values = 128 + (20 + 10 * n) * noise[n]
        Image.fromarray(values.clamp(0, 255).byte().numpy()).save(file)
    return files


def net(n_classes=5, width=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(900 * width, n_classes)
    ).eval()


@pytest.mark.parametrize("names", [(), ("features", "logits"), ("pooler_output", "logits")])
def test_other_names_and_the_same_outputs_are_no_difference(images, names):
    record = ms.diff(net(), Wrapped(net(), names), images, size=32)
    assert record.is_same
    assert (record.labels_changed, record.changed_predictions) == (0, ())
    assert record.matched_by.startswith("weights, shape and value")


@pytest.mark.parametrize(
    "b", [net(width=3, seed=1), Wrapped(net(seed=2)), Wrapped(net(seed=3), after=nn.Softmax(1))]
)
def test_the_images_whose_label_changes_are_those_of_torch(images, b):
    a = net()
    record = ms.diff(a, b, images, size=32)
    scores = {side: ms.predict(side, images, size=32, top=1) for side in (a, b)}
    pairs = [
        (x.image, x.top[0], y.top[0])
        for x, y in zip(*(one.predictions for one in scores.values()), strict=True)
    ]
    expected = [(image, x.index, y.index) for image, x, y in pairs if x.index != y.index]
    assert [(row.image, row.a.index, row.b.index) for row in record.changed_predictions] == expected
    assert len(expected) == record.labels_changed > 0
    shares = {image: (x.score, y.score) for image, x, y in pairs}
    for row in record.changed_predictions:
        assert (row.a.score, row.b.score) == pytest.approx(shares[row.image], rel=1e-4)
    assert f"{len(expected)} of 12 images change" in str(record)
    assert not record.is_same


def test_outputs_of_two_sizes_are_told_in_one_line(images):
    with pytest.raises(
        CannotRunError, match="A has 5 classes and B 7 classes: the outputs cannot be compared"
    ):
        ms.diff(net(), Wrapped(net(7)), images, size=32)


def test_layers_are_compared_where_they_are_asked_for(images):
    other = nn.Sequential(*net(), nn.Linear(5, 5))
    record = ms.diff(net(), other, images, size=32, layer="*")
    assert not record.sizes
    assert record.totals.added


def test_one_other_layer_is_not_another_architecture(images):
    assert not ms.diff(net(), net(seed=1), images, size=32).sizes


def test_in_folders_of_classes_it_is_said_who_is_right(images, tmp_path):
    labels = [f"kind {n}" for n in range(5)]
    for n, file in enumerate(images):
        (tmp_path / labels[n % 5]).mkdir(exist_ok=True)
        file.rename(tmp_path / labels[n % 5] / file.name)
    files = []
    for seed, width in ((0, 6), (1, 3)):
        files.append(tmp_path / f"{seed}.pt")
        torch.save({"state_dict": net(width=width, seed=seed).state_dict(), "classes": labels}, files[-1])
        (tmp_path / f"net{seed}.py").write_text(
            "from torch import nn\n"
            f"def net(): return nn.Sequential(nn.Conv2d(3, {width}, 3), nn.ReLU(), nn.Flatten(), "
            f"nn.Linear({900 * width}, 5))\n"
        )
    ours, theirs = (f"{tmp_path}/net{seed}.py:net" for seed in (0, 1))
    of_images = [str(tmp_path / label) for label in labels]
    record = ms.diff(ours, theirs, of_images, checkpoint=files[0], b_checkpoint=files[1], size=32)
    rows = [(Path(row.image).parent.name, row.a.label, row.b.label) for row in record.changed_predictions]
    right = [sum(row[0] == row[side] for row in rows) for side in (1, 2)]
    assert sum(right) > 0
    assert (
        f"only A is right for {right[0]}, only B for {right[1]}" in dict(diff_sheet(record).facts)["accuracy"]
    )
    assert not record.accuracy.is_order_assumed


@pytest.mark.parametrize("suffix", [".ts", ".pt"])
def test_torchscript_is_neither_an_input_nor_weights_that_stand_for_it(suffix, images, tmp_path):
    model, file = net().eval(), tmp_path / f"net{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.save(torch.jit.trace(model, torch.zeros(1, 3, 32, 32)), file)
    for sides in ((model, str(file)), (str(file), model), ("resnet18", str(file))):
        with pytest.raises(CannotRunError, match="is TorchScript, whose layers cannot be compared"):
            ms.diff(*sides, str(images[0]), weights="none" if "resnet18" in sides else "auto")
    assert ms.diff(model, str(file)).totals.changed == 0
    with pytest.raises(CannotRunError, match="is TorchScript") as caught:
        ms.diff(str(file), str(images[0]))
    assert caught.value.hint.endswith(f"modelscope weights {file}   lists its tensors")


def test_layers_that_have_no_name_in_common_are_not_called_the_same(images):
    with pytest.raises(CannotRunError, match="'conv' has the same name in A and in B"):
        ms.diff(net(), Wrapped(net()), images, size=32, layer="conv")


def test_a_net_with_other_names_is_renamed_and_nothing_else(tmp_path):
    torch.manual_seed(0)

    def block():
        norm = nn.BatchNorm2d(4)
        norm.running_mean.normal_()
        return nn.Sequential(nn.Conv2d(4, 4, 3), norm)

    a = nn.ModuleDict({"first": block(), "second": block()})
    b = nn.ModuleDict(
        {
            name: nn.ModuleDict({"x": a[old][0], "y": a[old][1]})
            for name, old in (("one", "first"), ("two", "second"))
        }
    )
    for name, model in (("a", a), ("b", b)):
        torch.save(model.state_dict(), tmp_path / f"{name}.pt")
    record = ms.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {row.status for row in record.tensors} == {"renamed"}
    assert all(row.differing == 0 for row in record.tensors)


class Block(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.cv_a, self.nm_a = nn.Conv2d(6, 6, 3, 2 if bug == "stride" else 1, 1), nn.BatchNorm2d(6)
        self.cv_b, self.nm_b = nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6, eps=0.1 if bug == "eps" else 1e-5)
        self.side, self.bug = nn.Conv2d(6, 6, 1), bug

    def forward(self, x):
        beside = self.side(x)  # which the other model computes last
        x = self.nm_a(self.cv_a(x))
        x = self.nm_b(self.cv_b(x if self.bug == "relu" else x.relu()))
        return x + nn.functional.interpolate(beside, x.shape[2:])


class Original(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6)
        self.downsample = nn.Conv2d(6, 6, 1)

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return y + self.downsample(x)


def ported(bug, where):
    """Return a net and its re-implementation with other names, the same weights and a bug in one block."""
    torch.manual_seed(0)
    a = nn.ModuleDict({"stem": nn.Conv2d(3, 6, 3), "layers": nn.Sequential(*(Original() for _ in range(4)))})
    b = nn.ModuleDict(
        {"first": nn.Conv2d(3, 6, 3), "stages": nn.Sequential(*(Block(bug * (n == where)) for n in range(4)))}
    )
    names = {"stem": "first", "layers": "stages", "conv1": "cv_a", "bn1": "nm_a", "conv2": "cv_b"}
    names |= {"bn2": "nm_b", "downsample": "side"}
    state = {
        ".".join(names.get(part, part) for part in key.split(".")): v for key, v in a.state_dict().items()
    }
    b.load_state_dict(state)
    return tuple(nn.Sequential(*one.values(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval() for one in (a, b))


@pytest.mark.parametrize("where", [0, 2, 3])
@pytest.mark.parametrize(
    ("bug", "layer"), [("", None), ("eps", "bn2"), ("relu", "conv2"), ("stride", "conv1")]
)
def test_the_first_layer_of_a_port_that_differs_is_found(bug, layer, where):
    a, b = ported(bug, where)
    record = ms.diff(a, b, torch.randn(2, 3, 16, 16))
    assert record.matched_by.startswith("weights, shape and value")
    if bug == "stride":
        row = next(row for row in record.layers if row.name == f"1.{where}.{layer}")
        assert (
            row.matched
            == f"'1.{where}.cv_a' of B has its weights, but no value of its shape in this position"
        )
    else:
        assert record.first_divergence == (f"1.{where}.{layer}" if layer else None)


@pytest.mark.parametrize("seed", range(3))
def test_accuracies_of_class_folders_are_those_of_torch(tmp_path, seed):
    a, b = net(3, seed=2 * seed), net(3, seed=2 * seed + 1)
    noise = torch.randint(0, 256, (30, 32, 32, 3), generator=torch.Generator().manual_seed(seed)).byte()
    truth = torch.arange(3).repeat_interleave(10)
    for n, name in enumerate(["cat", "dog", "owl"][k] for k in truth):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(noise[n].numpy()).save(tmp_path / name / f"{n:02}.png")
    record = ms.diff(a, b, tmp_path, size=32, mean=(0, 0, 0), std=(1, 1, 1))
    x = noise.permute(0, 3, 1, 2) / 255
    right = [model(x).argmax(1) == truth for model in (a, b)]
    assert [record.accuracy.a.value, record.accuracy.b.value] == [one.double().mean() for one in right]
    alone = [int((right[k] & ~right[1 - k]).sum()) for k in (0, 1)]
    assert [record.accuracy.only_a, record.accuracy.only_b] == alone
    assert record.accuracy.p_value == pytest.approx(binomtest(alone[0], sum(alone)).pvalue)
    by_class = [
        (int(right[0][at].sum()), int(right[1][at].sum())) for at in (slice(10), slice(10, 20), slice(20, 30))
    ]
    changed = [
        (name, 10, *two)
        for name, two in zip(("cat", "dog", "owl"), by_class, strict=True)
        if two[0] != two[1]
    ]
    assert sorted(map(astuple, record.accuracy.classes)) == changed
    falls = [one.b - one.a for one in record.accuracy.classes]
    assert falls == sorted(falls)
    assert record.accuracy.is_order_assumed
    assert "assuming the alphabetical order of the folders" in dict(diff_sheet(record).facts)["accuracy"]
    mixed = [file.rename(tmp_path / file.name) for file in tmp_path.glob("*/*.png")]
    assert ms.diff(a, b, mixed, size=32).accuracy is None
