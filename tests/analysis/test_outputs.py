"""What a model's output is, whatever its shape and names, and what is followed in it."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tolerance import assert_close, close
from torch import Tensor, nn
from torchvision.ops import box_iou

import modelscope_cli as ms
from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import THE_PREDICTED, parse_aim
from modelscope_cli.errors import CannotRunError, UsageError

LABELS = ("sky", "sea", "cat")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def read(output: Any, family: str = "custom", n_images: int | None = 2, size: int = 8) -> ModelOutput:
    reader = OutputReader(family, LABELS, nn.Identity())
    return reader.read(output, (torch.zeros(2, 3, size, size),), n_images)


@dataclass
class Detected:
    logits: Tensor
    pred_boxes: Tensor


@dataclass
class Encoded:
    last_hidden_state: Tensor
    pooler_output: Tensor


SCORES, MAPS, TOKENS = numbers(2, 3), numbers(2, 3, 8, 8), numbers(2, 5, 3)
WIDE = numbers(2, 4, 8, 8)


@pytest.mark.parametrize(("output", "family", "kind", "path"), [
    (SCORES, "classification", "classes", ""),
    ((SCORES, MAPS), "custom", "classes", "0"),
    ((MAPS, SCORES), "custom", "classes", "1"),
    ({"features": numbers(2, 7), "logits": SCORES}, "custom", "classes", "logits"),
    ({"deep": {"key": SCORES}, "maps": [MAPS]}, "custom", "classes", "deep.key"),
    ({"colour": SCORES, "kind": numbers(2, 4)}, "custom", "classes", "colour"),
    ((SCORES, numbers(2, 4)), "custom", "classes", "0"),
    (OrderedDict(out=MAPS, aux=MAPS), "segmentation", "pixels", "out"),
    ({"logits": numbers(2, 4, 2, 2)}, "custom", "pixels", "logits"),
    (WIDE, "custom", "pixels", ""),
    (MAPS, "custom", "pixels", ""),  # as many channels as the image, and as class names
    (numbers(2, 4, 4, 4), "custom", "vectors", ""),  # feature maps
    (numbers(2, 1, 8, 8), "custom", "depth", ""),
    (numbers(2, 8, 8), "custom", "depth", ""),
    ({"predicted_depth": numbers(2, 6, 6)}, "custom", "depth", "predicted_depth"),
    (TOKENS, "custom", "vectors", ""),
    (Encoded(TOKENS, SCORES), "custom", "vectors", "pooler_output"),
    ({"image_embeds": SCORES}, "custom", "vectors", "image_embeds"),
    (numbers(2, 1), "custom", "vectors", ""),
    (numbers(2), "custom", "vectors", ""),
    (Detected(TOKENS, numbers(2, 5, 4).sigmoid()), "custom", "boxes", "logits"),
])  # fmt: skip
def test_what_an_output_is(output, family, kind, path):
    answer = read(output, family)
    assert (answer.kind, answer.path) == (kind, path)
    assert len(answer) == 2
    if kind in ("classes", "pixels"):
        assert not answer.scores.changed(answer.scores).any()
        assert not answer.scores.difference(answer.scores).any()


@pytest.mark.parametrize(("output", "said"), [
    (None, "a NoneType without tensors"),
    ("text", "a str without tensors"),
    (torch.ones(2, 3).long(), "tensors of int64"),
    (torch.ones(0, 3), "cannot be"),
    (numbers(6, 3), "for 2 images is 6x3"),
])  # fmt: skip
def test_what_says_nothing_of_the_images(output, said):
    with pytest.raises(CannotRunError) as caught:
        read(output)
    assert said in caught.value.message


class Unet(nn.Module):
    __module__ = "segmentation_models_pytorch.decoders.unet.model"


class Gated(nn.Module):
    """Its last layer is a sigmoid inside a block, and not of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gate = nn.Linear(3, 4), nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
        self.block = nn.Module()
        self.block.pool, self.block.gate = nn.Identity(), self.gate


@pytest.mark.parametrize(("module", "made", "kind", "has_several"), [
    (nn.Identity(), lambda x: x.softmax(1), "classes", False),
    (nn.Identity(), lambda x: x.softmax(1).half(), "classes", False),
    (nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), lambda x: x.sigmoid(), "classes", True),
    (nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()), lambda x: x[:, :1].sigmoid(), "classes", True),
    (nn.Identity(), F.normalize, "vectors", None),
    (nn.Identity(), lambda x: F.normalize(x.relu() + 0.1), "vectors", None),
    (Gated(), lambda x: x.sigmoid(), "classes", False),  # numbers like any others
    (nn.Identity(), lambda x: x, "classes", False),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_read_by_their_values(module, made, kind, has_several, seed):
    x = numbers(5, 4, seed=seed)
    answer = OutputReader("custom", None, module).read(made(x), (torch.zeros(5, 3, 8, 3),), 5)
    assert answer.kind == kind
    is_undone = isinstance(module, nn.Sequential) or made(x).sum(1).sub(1).abs().max() < 0.01
    if kind == "classes":
        assert answer.main.has_several == has_several
        scores = (
            answer.main.tensor().float().sigmoid() if has_several else answer.main.tensor().float().softmax(1)
        )
        expected = made(x).float() if is_undone else made(x).softmax(1)
        assert torch.allclose(scores, expected, atol=1e-3)


class TwoHeads(nn.Module):
    """A head of logits, all within 0..1, and one that ends in a sigmoid, in any order of layers and outputs."""

    def __init__(self, arrange, *, is_sigmoid_last=True, is_data_dependent=False):
        super().__init__()
        cls, box = nn.Linear(3, 5), nn.Sequential(nn.Linear(3, 4), nn.Sigmoid())
        nn.init.constant_(cls.bias, 0.5)
        cls.weight.data *= 0.1
        for name, head in [("cls", cls), ("box", box)][:: 1 if is_sigmoid_last else -1]:
            self.add_module(name, head)
        self.arrange, self.is_data_dependent = arrange, is_data_dependent

    def forward(self, x):
        x = x.mean((2, 3))
        if self.is_data_dependent:
            x = x * float(x.abs().max() > 0)
        return self.arrange(self.cls(x), self.box(x))


@pytest.mark.parametrize("is_sigmoid_last", [True, False])
@pytest.mark.parametrize("is_data_dependent", [True, False])
@pytest.mark.parametrize(("arrange", "has_several"), [
    (lambda logits, box: {"logits": logits, "box": box}, False),
    (lambda logits, box: {"box": box, "logits": logits}, False),
    (lambda logits, box: (logits, box), False),
    (lambda logits, box: logits, False),  # the other head is for training
    (lambda logits, box: {"logits": logits.sigmoid(), "box": box}, True),
    (lambda logits, box: box, True),
    (lambda logits, box: {"box": logits, "scores": box.clamp(0, 1)}, True),
])  # fmt: skip
def test_only_an_output_that_comes_from_a_sigmoid_is_of_independent_classes(
    arrange, has_several, is_data_dependent, is_sigmoid_last
):
    torch.manual_seed(0)
    model = TwoHeads(arrange, is_sigmoid_last=is_sigmoid_last, is_data_dependent=is_data_dependent)
    x = numbers(5, 3, 8, 8)
    with torch.no_grad():
        answer = OutputReader("custom", None, model).read(model(x), (x,), 5)
        assert answer.main.has_several == has_several
        record = ms.predict(model, x, top=5)
    explained = ms.explain(model, x[:1], target="1", method="integrated-gradients", receipt=False)
    assert record.activation == ("sigmoid" if has_several else "softmax")
    score = next(one.score for one in record.predictions[0].top if one.index == 1)
    assert explained.probability == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(("rows", "is_told"), [
    ([[8.3, 6.9, -5.0, -8.3, -4.0]], True),  # two are on
    ([[3.0, -6.0, -7.0, -5.0, -3.0], [-4.0, -6.0, -3.0, -5.0, -9.0]], True),  # of the second none is
    ([[9.0, -3.0, -4.0, -6.0, -5.0]], False),
    ([[9.0, 3.0, 2.5, -2.2, -3.0]], False),  # one is far above the others
    ([[0.3, 0.2, -0.1, -0.4, -0.6]], False),
    (numbers(64, 5).mul(4).log_softmax(1).tolist(), False),
    (numbers(64, 1000).tolist(), False),
])  # fmt: skip
def test_logits_that_look_like_those_of_independent_classes_name_the_option(rows, is_told):
    rows = torch.tensor(rows)
    for family in ("custom", "classification"):
        reader = OutputReader(family, [str(n) for n in range(rows.shape[1])], nn.Identity())
        note = reader.read(rows, (torch.zeros(len(rows), 3, 8, 8),)).note or ""
        assert ("--output-kind labels" in note) == (is_told and family == "custom")


@pytest.mark.parametrize(
    ("labels", "path"), [("abcd", "0"), ("abcdef", "1"), ("ab", "2"), ("abc", "0"), ("", "0")]
)
def test_labels_choose_the_output_that_is_as_wide_as_they_are_many(labels, path):
    """Such as that of classes, and not the box."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(3, n) for n in (4, 6, 2)])

        def forward(self, x):
            return tuple(head(x.mean((2, 3))) for head in self.heads)

    model, x = Heads(), numbers(2, 3, 8, 8)
    answer = OutputReader("custom", [*labels], model).read(model(x), (x,), 2)
    assert (answer.path, "--output-kind auto:" in (answer.note or "")) == (path, True)
    if path != "0":
        assert ms.predict(model, x, labels=[*labels], top=6).classes == len(labels)
        assert f"output '{path}'" in ms.grads(model, x, labels=[*labels]).loss.name


def test_later_rows_are_read_as_the_first_are():
    """Of a changed model a row may be zeros, which are no unit vectors."""
    reader = OutputReader("custom", None, nn.Identity())
    kinds = [
        reader.read(rows, (torch.zeros(2, 3, 8, 8),), 2).kind for rows in (F.normalize(SCORES), 0 * SCORES)
    ]
    assert kinds == ["vectors", "vectors"]


@pytest.mark.parametrize(("output", "wanted", "kind", "path"), [
    (MAPS, "segmentation", "pixels", ""),
    (SCORES, "embedding", "vectors", ""),
    ({"logits": SCORES, "map": MAPS}, "segmentation", "pixels", "map"),
    ({"logits": SCORES, "deep": numbers(2, 1, 4, 4)}, "depth", "depth", "deep"),
    ({"pooled": SCORES, "map": MAPS}, "classes", "classes", "pooled"),
])  # fmt: skip
def test_a_kind_that_is_asked_for(output, wanted, kind, path):
    answer = OutputReader("custom", None, nn.Identity(), wanted).read(output, (torch.zeros(2, 3, 8, 8),), 2)
    assert (answer.kind, answer.path) == (kind, path)
    assert "; --output-kind" not in (answer.note or "")


@pytest.mark.parametrize("wanted", ["classes", "depth", "detection"])
def test_a_kind_that_the_output_is_not(wanted):
    with pytest.raises(CannotRunError, match=f"'--output-kind {wanted}' needs .* returns 2x3x8x8") as caught:
        OutputReader("custom", None, nn.Identity(), wanted).read(MAPS, (torch.zeros(2, 3, 8, 8),), 2)
    expected = "--output-kind segmentation" if wanted == "classes" else f"leave out --output-kind {wanted}"
    assert caught.value.hint == expected


def test_one_channel_is_two_classes_whose_softmax_is_its_sigmoid():
    logits = numbers(2, 1, 8, 8)
    answer = OutputReader("custom", None, Unet()).read(logits, (torch.zeros(2, 3, 8, 8),), 2)
    assert_close(answer.main.tensor().softmax(1)[:, 1], logits.sigmoid()[:, 0])
    ended = OutputReader("custom", None, nn.Sequential(nn.Sigmoid())).read(
        logits.sigmoid(), (torch.zeros(2, 3, 8, 8),), 2
    )
    assert_close(ended.main.tensor().softmax(1)[:, 1], logits.sigmoid()[:, 0])


def test_masks_of_queries_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    classes, masks = numbers(2, 5, 4), numbers(2, 5, 8, 8, seed=1)
    output = {"class_queries_logits": classes, "masks_queries_logits": masks}
    answer = read(output)
    processor = transformers.MaskFormerImageProcessorPil()
    theirs = processor.post_process_semantic_segmentation(OrderedAttributes(output))
    size = torch.nn.functional.interpolate(answer.main.tensor().exp(), (384, 384), mode="bilinear")
    ours = answer.main.tensor().argmax(1) if theirs[0].shape == (8, 8) else size.argmax(1)
    assert torch.stack(theirs).shape == ours.shape
    assert float((torch.stack(theirs) == ours).float().mean()) > 0.99


class OrderedAttributes(dict):
    __getattr__ = dict.__getitem__


def test_volumes():
    volume = numbers(2, 4, 5, 8, 8)
    answer = OutputReader("custom", None, nn.Identity()).read(volume, (torch.zeros(2, 1, 5, 8, 8),), 2)
    assert (answer.kind, answer.main.words) == ("pixels", "scores of 4 classes for each of 5x8x8 voxels")
    assert not answer.scores.divergence(answer.scores).any()


def test_a_depth_map():
    depth = numbers(2, 8, 8).exp()
    answer = read(depth)
    followed = answer.follow(THE_PREDICTED, None)
    assert_close(followed.score(answer.main), depth.mean((1, 2)))
    (first, _) = answer.main.ranges()
    figures = (first.least, first.median, first.mean, first.greatest)
    expected = (depth[0].min(), depth[0].median(), depth[0].mean(), depth[0].max())
    assert figures == tuple(close(float(value)) for value in expected)


def test_depths_and_classes_are_drawn_in_the_size_of_the_input(tmp_path):
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 1, 2, 2), numbers(2, 3, 8, 12)
    depth = ms.predict(net, x, output_kind="depth").save(tmp_path / "depth")
    assert depth.files[:2] == ("maps.png", "maps.safetensors")
    expected = F.interpolate(net(x), (8, 12), mode="bilinear")[:, 0]
    saved = load_file(tmp_path / "depth/maps.safetensors")
    assert_close(torch.stack([saved["0.0"], saved["1.1"]]), expected)
    record = ms.explain(net, x[:1], output_kind="depth", method="saliency", receipt="none")
    assert (record.probability, record.score_name) == (None, "mean value")
    assert record.logit == close(float(net(x[:1]).detach().mean()))


class AgeRegressor(nn.Flatten):
    """Rows of numbers, by its name."""


@pytest.mark.parametrize(("net", "shape", "options"), [
    (nn.Flatten(), (1, 1, 1), {}),
    (nn.Flatten(0), (1, 1, 1), {}),
    (nn.Flatten(), (4, 1, 1), {"output_kind": "embedding"}),
    (AgeRegressor(), (4, 1, 1), {}),
    (nn.Flatten(2), (5, 2, 1), {}),
    (nn.Identity(), (3, 20, 20), {}),  # a map: its range
], ids=["one", "bare", "said", "named", "points", "map"])  # fmt: skip
def test_numbers_that_are_not_scores_are_predicted_as_they_are(net, shape, options):
    x = numbers(3, *shape)
    record = ms.predict(net, x, **options)
    assert (record.output, len(record.predictions)) == ("vectors", 3)
    for one, row in zip(record.predictions, x.flatten(1), strict=True):
        assert one.numbers == (tuple(row.tolist()) if len(row) <= 1024 else ())
        assert (one.top, one.values.least, one.values.greatest) == ((), row.min(), row.max())


def test_a_lone_number_is_a_probability_only_where_that_is_known():
    x = numbers(3, 1, 1, 1)
    shares = x.flatten().sigmoid()
    ending = ms.predict(nn.Sequential(nn.Flatten(0), nn.Sigmoid()), x)
    asked = ms.predict(nn.Flatten(), x, scores="sigmoid")
    for record in (ending, asked):
        assert_close(torch.tensor([one.top[0].score for one in record.predictions]), shares)
    scaled = ms.predict(Scaled(), x)  # a sigmoid is its last layer, but not its output
    assert_close(torch.tensor([one.numbers[0] for one in scaled.predictions]), 100 * shares)


class Scaled(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Sigmoid())

    def forward(self, x):
        return 100 * super().forward(x)


def test_a_row_of_scores():
    before, after = read(SCORES), read(numbers(2, 3, seed=1))
    followed = before.follow(parse_aim("cat"), LABELS)
    assert followed.words == "2 (cat)"
    assert torch.equal(followed.score(after.main), after.main.tensor()[:, 2])
    assert_close(followed.probability(after.main), after.main.tensor().double().softmax(1)[:, 2])
    later, earlier = (part.double().log_softmax(1) for part in (after.main.tensor(), SCORES))
    expected = F.kl_div(later, earlier, log_target=True, reduction="none")
    assert_close(before.scores.divergence(after.scores), expected.sum(1))
    assert (
        before.scores.changed(after.scores).tolist()
        == (SCORES.argmax(1) != after.main.tensor().argmax(1)).double().tolist()
    )


def test_pixels():
    later = numbers(2, 4, 8, 8, seed=1)
    before, after = read(WIDE), read(later)
    classes = WIDE.argmax(1)
    own = before.follow(THE_PREDICTED, None)
    assert_close(own.score(after.main), later.gather(1, classes[:, None]).mean((1, 2, 3)))
    mask = classes == 1
    masked = before.follow(parse_aim("mask:1"), None)
    expected = [float(later[n, 1][mask[n]].mean()) for n in range(2)]
    assert masked.score(after.main).tolist() == [close(value) for value in expected]
    assert_close(before.scores.changed(after.scores), (later.argmax(1) != classes).double().mean((1, 2)))
    (first, *_), _ = before.main.guesses(5, LABELS)
    counts = classes[0].flatten().bincount(minlength=4)
    assert (first.index, first.share) == (int(counts.argmax()), close(float(counts.max() / 64)))
    assert first.score == close(float(WIDE[0].softmax(0)[first.index][classes[0] == first.index].mean()))


def boxes(corners: list[list[float]], scores: list[float], labels: list[int]) -> dict[str, Tensor]:
    return {"boxes": torch.tensor(corners), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}


SKY = [0.0, 0.0, 4.0, 4.0]
CAT = [4.0, 4.0, 8.0, 8.0]
NEAR_CAT = [4.0, 4.0, 8.0, 7.0]


def test_a_box_is_found_again_by_label_and_overlap():
    before = read([boxes([SKY, CAT], [0.6, 0.9], [0, 2])], "detection", 1)
    followed = before.follow(THE_PREDICTED, LABELS)
    assert (
        followed.words == "box 0 (rank 1): class 2 (cat)"
    )  # the best is the first, whatever their order was
    after = read([boxes([NEAR_CAT, CAT], [0.8, 0.99], [2, 1])], "detection", 1)
    overlap = float(box_iou(torch.tensor([CAT]), torch.tensor([NEAR_CAT])))
    assert float(followed.score(after.main)) == close(0.8 * overlap)
    assert float(before.follow(parse_aim("sky"), LABELS).score(after.main)) == 0


@pytest.mark.parametrize("has_nothing", [True, False])
def test_boxes_of_queries(has_nothing):
    centres = torch.tensor([[[0.5, 0.5, 0.5, 0.25]]])
    logits = torch.tensor([[[0.0, 2.0, 1.0, -1.0]]])
    from modelscope_cli.analysis.outputs.boxes import boxes_of_queries

    (((guess,),)) = boxes_of_queries(logits, centres, (8, 16), has_nothing=has_nothing).guesses(5, None)
    assert guess.box == (4.0, 3.0, 12.0, 5.0)
    expected = logits.softmax(2)[0, 0, 1] if has_nothing else logits.sigmoid()[0, 0, 1]
    assert (guess.index, guess.score) == (1, close(float(expected)))


def test_an_image_without_a_box():
    none = boxes([], [], [])
    none["boxes"] = torch.zeros(0, 4)
    empty = read([none], "detection", 1)
    with pytest.raises(CannotRunError, match="no box in the image"):
        empty.follow(THE_PREDICTED, LABELS)
    with pytest.raises(CannotRunError, match=r"no box of 2 \(cat\) in the image"):
        empty.follow(parse_aim("cat"), LABELS)
    one = read([boxes([CAT], [0.9], [2])], "detection", 1)
    with pytest.raises(UsageError, match="finds 1 boxes"):
        one.follow(parse_aim("box:1"), LABELS)


def test_what_is_known_of_no_box_is_said():
    from modelscope_cli.analysis.outputs.boxes import Boxes, ImageBoxes

    none = ImageBoxes(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0))
    assert Boxes((none,)).words == "no box"
    known = Boxes((none, none), (torch.tensor([0.1, 0.21]), torch.tensor([0.2, 0.0])))
    assert known.words == "no box: the best score is 0.21, not above 0.25"


def test_an_embedding_is_followed_by_its_angle():
    before, after = read({"embeds": SCORES}), read({"embeds": numbers(2, 3, seed=1)})
    score = before.follow(THE_PREDICTED, None).score(after.main)
    assert_close(score, F.cosine_similarity(SCORES, numbers(2, 3, seed=1)))
    with pytest.raises(UsageError, match="does not apply: the model outputs 3 values per image"):
        before.follow(parse_aim("cat"), LABELS)


@pytest.mark.parametrize(
    "output", [SCORES.clone(), WIDE.clone(), {"embeds": numbers(2, 3, seed=2)}, {"pooled": numbers(2, 3)}]
)
def test_what_is_followed_can_be_differentiated(output):
    answer = read(output)
    leaf = answer.main.tensor().requires_grad_()
    (gradient,) = torch.autograd.grad(answer.follow(THE_PREDICTED, None).score(answer.main).sum(), leaf)
    assert gradient.isfinite().all()
    assert answer.kind == "vectors" or gradient.any()  # of an angle to itself it is 0, as it is the largest


@pytest.mark.parametrize("target", ["1", "9", "cat", "mask:1", "mask:9", "mask:cat", "box:1"])
@pytest.mark.parametrize("kind", ["auto", "embedding", "segmentation", "classes", "depth"])
@pytest.mark.parametrize("shape", [(5,), (1,), (3, 8, 8), (1, 8, 8), (7, 4, 4), (16, 8), (2, 3, 8, 8)])
def test_the_hint_about_a_target_does_not_lead_into_a_second_error(shape, kind, target):
    def follow(target: str, kind: str) -> None:
        answer = OutputReader("custom", None, nn.Identity(), kind).read(numbers(1, *shape), (image,), 1)
        answer.follow(parse_aim(target), None)

    image = torch.zeros(1, 3, 8, 8)
    try:
        follow(target, kind)
    except UsageError as error:
        typed = error.hint.partition("   ")[0].split()
        options = dict(zip(typed[::2], typed[1::2], strict=True))
        follow(options.get("--target", target), options.get("--output-kind", kind))
    except CannotRunError:  # the shape is not of this kind, which is told before the target is read
        assert kind in ("segmentation", "classes", "depth")


def test_names_for_channels_of_a_map_like_the_image_are_counted():
    answer = OutputReader("custom", None, nn.Identity()).read(MAPS, (torch.zeros(2, 3, 8, 8),), 2)
    assert (answer.n_named, answer.named) == (3, "channels")
    assert answer.note is not None
    assert "--output-kind segmentation reads it as classes of pixels" in answer.note


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_few_numbers_that_nothing_names_are_told_as_a_guess(n):
    class Net(nn.Module):
        def forward(self, x):
            return torch.arange(-1.0, n - 1).repeat(len(x), 1)

    for names, is_told in ((None, n <= 4), ([str(i) for i in range(n)], False)):
        reader = OutputReader("custom", names, Net())
        note = reader.read(reader.module(torch.zeros(2, 3, 8, 8)), (torch.zeros(2, 3, 8, 8),)).note or ""
        assert (
            "--output-kind classes if they are scores, labels if an image can have several" in note
        ) == is_told
