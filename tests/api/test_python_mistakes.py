"""What a person gets wrong in Python: said in words, with keywords instead of options, and what to write."""

import pytest
import torch
from tolerance import close
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


class OfBytes(Net):
    def forward(self, x):
        return super().forward(x.float() / 255)


class OfRows(nn.Module):
    """Takes sequences `(N, length, features)`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x).mean(1)


class OfPlanes(Net):
    """Takes `(N, H, W)`, and puts three equal channels in."""

    def forward(self, x):
        return super().forward(x[:, None].expand(-1, 3, -1, -1))


class OfTwo(Net):
    def __init__(self):
        super().__init__()
        self.meta = nn.Linear(5, 3)

    def forward(self, image, meta):
        return super().forward(image) + self.meta(meta)


NET, IMAGES = Net().eval(), torch.rand(2, 3, 8, 6)
BYTES = (IMAGES * 255).to(torch.uint8)


@pytest.mark.parametrize(("model", "given", "shape"), [
    (NET, IMAGES[0], (1, 3, 8, 6)),
    (NET, IMAGES[0].numpy(), (1, 3, 8, 6)),
    (NET, IMAGES, (2, 3, 8, 6)),
    (OfBytes(), BYTES, (2, 3, 8, 6)),
    (OfBytes(), BYTES[0], (1, 3, 8, 6)),
    (OfRows(), torch.rand(2, 5, 8), (2, 5, 8)),
    (OfPlanes(), torch.rand(2, 8, 6), (2, 8, 6)),
])  # fmt: skip
def test_three_numbers_are_one_image_of_a_model_of_images(model, given, shape):
    record = ms.stats(model.eval(), given)
    assert record.run.input.shape == (shape,)


@pytest.mark.parametrize(("given", "message"), [
    (BYTES, "of 2 x 3 x 8 x 6 is of bytes (uint8): the model takes floats"),
    (BYTES[0], "of 3 x 8 x 6 is of bytes (uint8): the"),
    (IMAGES.movedim(1, -1), "of 2 x 8 x 6 x 3 has its channels last: the"),
    (IMAGES[0].movedim(0, -1).numpy(), "has its channels last: the"),
    (BYTES[0].movedim(0, -1).numpy(), "of 8 x 6 x 3 has its channels last and is of bytes (uint8): the"),
])  # fmt: skip
def test_images_that_the_model_does_not_take_as_they_are(given, message):
    with pytest.raises(UsageError) as told:
        ms.stats(NET, given)
    assert message in told.value.message
    written = eval(told.value.hint.removeprefix("give "), {"torch": torch, "x": given})
    assert written.dtype == torch.float32
    assert written.max() <= 1
    assert ms.stats(NET, written).run.input.shape[0][-3:] == (3, 8, 6)


def test_bytes_are_refused_by_a_layer_without_a_bias_too():
    with pytest.raises(UsageError, match="is of bytes"):
        ms.stats(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()), BYTES)


@pytest.mark.parametrize(("call", "message", "hint"), [
    (lambda: ms.stats(Net), "'Net' is a class", "give Net()"),
    (lambda: ms.watch(Net, None), "the class Net is not a torch.nn.Module", "pass a torch.nn.Module"),
    (lambda: ms.watch(torch.optim.SGD(NET.parameters()), NET), "an SGD is not a torch.nn", "the model first"),
    (lambda: ms.observe("resnet18").__enter__(), "a str is not a torch.nn.Module", "pass a module"),
    (lambda: ms.stats("torchvision:resnet18"), "have no prefix", "did you mean resnet18"),
    (lambda: ms.stats(NET, IMAGES, columns="foo"), "'foo' is not a value of columns", "try name, type"),
    (lambda: ms.stats(NET, IMAGES, columns=["mean", "sdt"]), "did you mean std", "columns='std'"),
    (lambda: ms.stats(NET, size="wide"), "'wide' in 'size=wide'", "size=224"),
    (lambda: ms.explain(NET, require="passed", receipt=False), "require needs", "leave out receipt"),
    (lambda: ms.lrfind(NET, low=1.0, high=0.1), "'low=1, high=0.1' is not", "low=1e-5, high=10"),
    (lambda: ms.stats(NET.state_dict()), "a dict of weights is not a model", "model.load_state_dict(weights)"),
    (lambda: ms.train(NET, lr="high"), "'lr=high' is not a number", "give a number"),
    (lambda: ms.stats(OfTwo(), IMAGES), "arguments: meta", "inputs={'image': '1,3,8,6', 'meta': '1,5'}"),
])  # fmt: skip
def test_the_message_and_the_hint_name_keywords(call, message, hint):
    with pytest.raises(UsageError) as told:
        call()
    assert message in str(told.value)
    assert hint in told.value.hint
    assert "--" not in str(told.value) + told.value.hint


def test_columns_may_be_one_and_quantiles():
    row = ms.stats(NET, IMAGES, columns="p50")["conv"]
    with torch.no_grad():
        median = NET.conv(IMAGES).flatten().median()  # the lower of the two in the middle
    assert row.quantiles["p50"] == pytest.approx(median.item(), rel=2**-8)


def test_what_is_shown_says_how_much_there_is():
    assert repr(ms.predict(NET, IMAGES, top=99)).startswith("PredictRecord(2 images, top 3, Net")
    checked = ms.check(NET, IMAGES, select="MS1")
    assert checked.passed
    assert repr(checked).startswith("CheckRecord(Passed: nothing found")


def test_a_watched_loop_has_the_verdict_of_its_record_when_it_has_ended(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ms.watch(model, optimizer) as watched:
        for n in range(3):
            assert (
                repr(watched)
                == f"WatchedLoop(running, {n} step{'s' * (n != 1)}; its record() has the results)"
            )
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(IMAGES), torch.tensor([0, 2])).backward()
            optimizer.step()
    assert watched.verdict == watched.record().verdict
    assert repr(watched) == f"WatchedLoop({watched.verdict}, 3 steps; its record() has the results)"
    assert watched.findings == watched.record().findings
    with pytest.raises(AttributeError, match=r"^WatchRecord has no 'rows': record.to_rows\(\)$"):
        watched.rows  # noqa: B018
    with pytest.raises(AttributeError, match=r"^WatchRecord has no 'figure'$"):
        watched.figure  # noqa: B018
    watched.to_html(tmp_path / "page.html")
    assert ms.read(tmp_path / "page.html").steps == 3


def test_an_argument_of_the_model_may_be_one_word():
    loaded = ms.load("squeezenet1_1", weights="none", model_arg="dropout=0.25")
    assert loaded.module.classifier[0].p == 0.25


@pytest.mark.parametrize("labels", [torch.tensor([0, 2]), [0, 2], (0, 2)])
def test_labels_of_each_image_are_the_target_of_a_loss_alone(labels):
    with pytest.raises(UsageError, match="a target is one class for all images"):
        ms.explain(NET, IMAGES, target=labels)
    truth = torch.as_tensor(labels)
    for batch in (1, 2):
        record = ms.grads(NET, IMAGES, target=labels, batch=batch)
        assert record.loss.value == close(nn.functional.cross_entropy(NET(IMAGES), truth).item())
    with pytest.raises(UsageError, match="target has 3 classes for 2 images"):
        ms.grads(NET, IMAGES, target=[0, 1, 2])
    with pytest.raises(UsageError, match="out of range"):
        ms.grads(NET, IMAGES, target=[0, 99])


def test_one_class_may_be_any_integer():
    for target in (2, torch.tensor(2), "2"):
        assert ms.grads(NET, IMAGES, target=target).loss.target.startswith("2")


def test_weights_are_not_read_from_a_module():
    with pytest.raises(UsageError, match="weights are read from a file"):
        ms.weights(NET)


@pytest.mark.parametrize("typed", ["fcc", "layer4.1.conv22", "avgpol", "nothing"])
def test_a_layer_that_is_not_there_has_a_hint_that_can_be_explained(typed):
    model, image = ms.load("resnet18", weights="none"), torch.rand(1, 3, 64, 64)
    with pytest.raises(UsageError, match="matches no layer") as caught:
        ms.explain(model, image, layer=typed)
    layer = (caught.value.hint or "").removeprefix("layer='").removesuffix("'")
    assert ms.explain(model, image, layer=layer, method="gradcam", receipt="none").rows[0].layer == layer


@pytest.mark.parametrize(("typed", "meant"), [
    ("dead_channel", "dead_channels"),
    ("zeros", "zero"),
    ("meen", "mean"),
    ("near_zeros", "near_zero"),
    ("xyzzy", None),
    ("_hidden", None),
])  # fmt: skip
def test_a_row_proposes_the_column_that_was_meant(typed, meant):
    row = ms.stats(Net(), torch.randn(2, 3, 8, 8))[0]
    with pytest.raises(AttributeError) as raised:
        getattr(row, typed)
    proposed = f": did you mean {meant}" if meant else ""
    assert str(raised.value) == f"ActivationStats has no '{typed}'{proposed}"
    assert not hasattr(row, typed)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_record_says_in_which_mode_the_model_ran(mode):
    record = ms.stats(Net(), torch.randn(2, 3, 8, 8), mode=mode)
    assert f", {mode} mode, " in repr(record)
    assert f", {mode} mode, " in str(record).splitlines()[0]


def test_a_finding_of_a_training_can_be_printed():
    """It is a row of no table: a column of another's asks for the attribute that it lacks."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ms.watch(model, optimizer) as watched:
        for _ in range(8):  # without zero_grad
            model(torch.randn(2, 3, 8, 8)).square().mean().backward()
            optimizer.step()
    (finding,) = watched.findings
    assert repr(finding).startswith("TrainingFinding(code MS713, ")
    assert not hasattr(finding, "name")
