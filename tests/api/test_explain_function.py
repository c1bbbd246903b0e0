"""`explain` as a function and as a command: the same document, the model as it was, errors in words."""

import json

import pytest
import torch
from function_and_command import HEALTHY, STAR, TINY, plain, tiny_resnet, without
from listening import Told
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.report.explain.table import explain_sheet

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
    ).save("called.safetensors")  # fmt: skip
    assert both.said() == ""
    ours, theirs = timeless(called.to_dict()), timeless(typed)
    ours["tensors"] = theirs["tensors"] = None
    assert ours == theirs
    one, other = (load_file(f"{name}.safetensors") for name in ("typed", "called"))
    assert set(one) == {"hirescam", "saliency"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    # What is said of the sum is what the saved cells add up to.
    row = called["hirescam"]
    due = called.logit - float(load_file(HEALTHY)["head.bias"][1])
    assert float(one["hirescam"].double().sum()) / due == pytest.approx(row.adds_up_to, rel=1e-5)


def test_the_model_is_left_as_it_was(unchanged):
    model = tiny_resnet().train()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    next(model.parameters()).requires_grad_(False)
    check = unchanged(model)
    record = ms.explain(model, STAR, method="all", **QUICK)
    check()
    assert {row.method for row in record.rows} >= {"hirescam", "occlusion", "integrated-gradients"}
    assert not record.unfit
    assert all(len(row.receipt.tests) >= 4 for row in record.rows)
    assert str(record)


def test_a_folder_keeps_pictures_of_its_images(cwd):
    for n in range(3):
        Image.open(STAR).rotate(90 * n).save(cwd / f"{n}.png")
    record = ms.explain(
        TINY, [f"{n}.png" for n in range(3)], checkpoint=HEALTHY, method="hirescam", receipt=False, size=32,
        out="why",
    )  # fmt: skip
    assert record.out_dir is None  # there are only the blocks
    record = record.save("why")
    assert record.images == 3
    assert {*record.files, "blocks", "run.json"} == {file.name for file in (cwd / "why").iterdir()}
    assert json.loads((cwd / "why" / "report.json").read_text())["images"] == 3


def test_maps_are_kept_of_sixteen_images():
    record = ms.explain(TINY, [STAR] * 17, checkpoint=HEALTHY, method="saliency", receipt=False, size=32)
    with pytest.raises(UsageError, match="the first 16 images are kept, not of 17"):
        record.save("maps.safetensors")
    assert record.save("all").files[0] == "explanation.png"


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


class LeftHalf(torch.nn.Module):
    """The square of the left half: nothing on the right changes its map, however the path is integrated."""

    def forward(self, x):
        left = x[..., : x.shape[-1] // 2].square().mean((1, 2, 3))
        return torch.stack([left, 1 - left], 1)


class Noisy(torch.nn.Module):
    def forward(self, x):
        score = (x * torch.randn_like(x)).square().mean((1, 2, 3))
        return torch.stack([score, -score], 1)


@pytest.mark.parametrize("method", ["integrated-gradients", "saliency"])
def test_a_map_that_ignores_the_image_or_changes_by_itself_fails(method):
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 1
    tests = {}
    for model in (LeftHalf(), Noisy()):
        receipt = ms.explain(model, image, method=method, target=0)[method].receipt
        tests[type(model)] = {one.test: one.answer for one in receipt.tests}
    assert (tests[LeftHalf]["repeat"], tests[LeftHalf]["image"]) == ("passed", "failed")
    assert tests[Noisy]["repeat"] == "failed"
    # Of several images, it is said which.
    record = ms.explain(LeftHalf(), image.expand(17, -1, -1, -1), method="saliency", target=0)
    assert record.failures[:2] == ("image of saliency on 0", "image of saliency on 1")
    assert len(record.failures) == 16
    assert dict(explain_sheet(record).facts)["failed"] == "; ".join(record.failures)


def test_where_and_agreement_are_of_the_saved_maps():
    record = ms.explain(TINY, STAR, checkpoint=HEALTHY, receipt=False, **QUICK)
    record = record.save("maps.safetensors")
    maps = load_file("maps.safetensors")
    for row in record.rows:
        left, top, right, bottom = row.where.box
        cells = maps[row.method].clamp(min=0)
        full = torch.nn.functional.interpolate(cells[None, None], (32, 32), mode="bilinear")[0, 0]
        if row.method != "hirescam":  # of the layer, cells below zero lie beside those above it
            assert full[top:bottom, left:right].sum() >= full.sum() / 2 * (1 - 1e-5)
        assert row.where.share == (right - left) * (bottom - top) / 32**2
        assert f"{row.where.place}, " in str(record)
    assert record.rows[0].agreement == pytest.approx(record.rows[1].agreement)
    assert all(row.where is None for row in ms.explain(TINY, [STAR, STAR], receipt=False, **QUICK).rows)


@pytest.mark.parametrize("method", ["hirescam", "auto", "all"])
def test_maps_that_disagree_are_told_in_one_line(method):
    record = ms.explain(TINY, STAR, checkpoint=HEALTHY, receipt=False, method=method, **QUICK)
    apart = [row.method for row in record.rows if row.agreement is not None and row.agreement < 0.3]
    lines = [line for line in str(record).splitlines() if "disagree" in line or "agree little" in line]
    assert len(lines) == bool(apart)
    assert all(name in lines[0] for name in apart) or len(apart) == len(record.rows)


@pytest.mark.parametrize(("how", "message"), [
    ({"method": "gradcm"}, "did you mean gradcam"),
    ({"method": ","}, "is not a value of method"),
    ({"target": 77}, "out of range"),
    ({"layer": "type:Conv2d"}, "a map belongs to one"),
    ({"require": "covering"}, "passed"),
    ({"require": "passed", "receipt": False}, "needs the receipt"),
    ({"receipt": "quik"}, "did you mean quick"),
])  # fmt: skip
def test_what_means_nothing_is_refused(how, message):
    with pytest.raises(UsageError, match=message):
        ms.explain(TINY, STAR, checkpoint=HEALTHY, **QUICK, **{"method": "hirescam", **how})


@pytest.mark.parametrize(("bias", "target"), [(-9.0, "predicted"), (9.0, "predicted"), (-9.0, "1")])
def test_an_image_without_a_label_is_explained_by_the_strongest_which_is_said(bias, target):
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    nn.init.constant_(layers[-1].bias, bias)
    model, image, told = nn.Sequential(*layers), torch.rand(1, 3, 16, 16), Told()
    ms.explain(model, image, target=target, method="hirescam", output_kind="labels", progress=told)
    is_told = any(
        "no label is predicted, so the one with the highest score is explained" in note for note in told.notes
    )
    assert is_told == (bias < 0 and target == "predicted")
