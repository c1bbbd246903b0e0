"""`explain` as a function and as a command: the same document, the model as it was, errors in words."""

import json

import pytest
import torch
from function_and_command import HEALTHY, STAR, TINY, plain, tiny_resnet, without
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError

QUICK = {"size": 32, "batch": 64}


def timeless(document):
    """Leave out what must differ between two runs."""
    document = plain(without(document, "warnings"))
    for row in document["rows"]:
        row["seconds"] = None
    return document


def test_the_function_and_the_command_return_the_same(both):
    typed = both.typed(
        f"explain {STAR} -m {TINY} -c {HEALTHY} --method hirescam,saliency --target 1 --receipt none --size 32 "
        "--no-save --save-tensors typed.safetensors"
    )
    called = ms.explain(
        TINY, STAR, checkpoint=HEALTHY, method="hirescam,saliency", target=1, receipt=False, size=32,
        save_tensors="called.safetensors",
    )  # fmt: skip
    assert both.said() == ""
    ours, theirs = timeless(called.to_dict()), timeless(typed)
    ours["tensors"] = theirs["tensors"] = None
    assert ours == theirs
    one, other = (load_file(f"{name}.safetensors") for name in ("typed", "called"))
    assert set(one) == {"hirescam", "saliency"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    # What is said of the sum is what the saved cells add up to.
    row = called["hirescam"]
    assert float(one["hirescam"].double().sum()) / called.logit == pytest.approx(row.adds_up, rel=1e-6)


def test_the_model_is_left_as_it_was(unchanged):
    model = tiny_resnet().train()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    next(model.parameters()).requires_grad_(False)
    check = unchanged(model)
    record = ms.explain(model, STAR, method="all", **QUICK)
    check()
    assert {row.method for row in record.rows} >= {"hirescam", "lrp", "occlusion", "integrated-gradients"}
    assert [why.partition(":")[0] for why in record.unfit] == ["rollout"]
    assert all(len(row.receipt.tests) >= 4 for row in record.rows)
    assert str(record)


def test_a_requirement_that_is_not_met_leaves_with_1(both):
    line = f"explain {STAR} -m {TINY} -c {HEALTHY} --method hirescam --size 32 --batch 64 --no-save"
    document = both.typed(f"{line} --require 'covering>2' --require 'covering>=-1'", code=1)
    assert [one["passed"] for one in document["requirements"]] == [False, True]
    assert not document["passed"]


def test_a_folder_keeps_pictures_of_its_images(cwd):
    for n in range(3):
        Image.open(STAR).rotate(90 * n).save(cwd / f"{n}.png")
    record = ms.explain(
        TINY, [f"{n}.png" for n in range(3)], checkpoint=HEALTHY, method="hirescam", receipt=False, size=32,
        out="why",
    )  # fmt: skip
    assert record.images == 3
    assert {*record.files, "blocks", "run.json"} == {file.name for file in (cwd / "why").iterdir()}
    assert json.loads((cwd / "why" / "report.json").read_text())["images"] == 3


def test_the_figures_of_several_images_are_means():
    Image.open(STAR).rotate(90).save("other.png")
    how = {"checkpoint": HEALTHY, "method": "hirescam", "size": 32, "batch": 64}
    single = [ms.explain(TINY, file, **how) for file in (STAR, "other.png")]
    together = ms.explain(TINY, [STAR, "other.png"], **how)
    for key in ("covering", "head_randomisation"):
        values = [getattr(record.rows[0].receipt, key) for record in single]
        assert getattr(together.rows[0].receipt, key) == pytest.approx(sum(values) / 2, rel=1e-5)
    assert together.passes == sum(record.passes for record in single)
    assert together.rows[0].receipt.verdict.passed == sum(
        record.rows[0].receipt.verdict.passed for record in single
    )
    assert together.logit == pytest.approx(sum(record.logit for record in single) / 2, rel=1e-5)


def test_pixels_of_a_segmentation_can_be_explained():
    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 2, 1)

        def forward(self, x):
            return {"out": nn.functional.interpolate(self.head(self.body(x).relu()), x.shape[-2:])}

    torch.manual_seed(1)  # some pixels are of class 1
    record = ms.explain(
        Segmenter(), torch.randn(1, 3, 32, 32), target="mask:1", method="hirescam", receipt=False
    )
    assert "1" in record.target
    assert record.rows[0].layer == "relu(body)"


def test_a_model_with_one_logit_can_be_explained():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
    )
    record = ms.explain(model, torch.randn(1, 3, 16, 16), method="auto", receipt=False)
    assert [row.method for row in record.rows] == ["hirescam", "integrated-gradients", "lrp"]


@pytest.mark.parametrize(("how", "message"), [
    ({"method": "gradcm"}, "did you mean gradcam"),
    ({"method": ","}, "is not a method"),
    ({"target": 77}, "out of range"),
    ({"layer": "type:Conv2d"}, "a map belongs to one"),
    ({"require": "covering"}, "FIELD>VALUE"),
    ({"require": "covering>0", "receipt": False}, "about the receipt"),
    ({"receipt": "quik"}, "did you mean quick"),
])  # fmt: skip
def test_what_means_nothing_is_refused(how, message):
    with pytest.raises(UsageError, match=message):
        ms.explain(TINY, STAR, checkpoint=HEALTHY, **QUICK, **{"method": "hirescam", **how})


@pytest.mark.parametrize("method", ["auto", "saliency", "integrated-gradients", "hirescam"])
def test_a_map_of_zeros_is_an_error(method):
    model = tiny_resnet()
    nn.init.zeros_(list(model.parameters())[-2])
    with pytest.raises(CannotRunError, match=r"every value of 'head\.weight' is zero"):
        ms.explain(model, STAR, method=method, receipt=False, **QUICK)


def test_a_model_that_takes_no_images_is_refused():
    with pytest.raises(CannotRunError, match="single images"):
        ms.explain(nn.Linear(8, 3), torch.randn(1, 8), method="saliency")
