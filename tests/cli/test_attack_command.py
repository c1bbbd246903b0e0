"""`modelscope attack`: what is found, what lands on disk, and whether the file says the same."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tolerance import A_NETWORK, close
from torchvision.models import squeezenet1_1
from torchvision.transforms import v2

GRAY = """
from torch import nn
class Gray(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 7))
"""


def levels(path):
    """The 8-bit values of a picture, read with Pillow alone."""
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def seen_by_the_model(path):
    """The 8-bit values torchvision hands to its normalisation."""
    crop = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    return np.asarray(crop(Image.open(path).convert("RGB"))).astype(int)


@pytest.fixture(scope="module")
def network(samples):
    network = squeezenet1_1(num_classes=10).eval()
    network.load_state_dict(load_file(samples / "shapes_squeezenet1_1.safetensors"))

    def probabilities(pixels):
        x = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            return network(v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(x)).softmax(1)[0]

    return probabilities


@pytest.mark.parametrize(("picture", "options", "norm", "epsilon"), [
    ("star.png", "--epsilon 8/255", "linf", 8 / 255),
    ("harbour.jpg", "--method fgsm -e 2/255", "linf", 2 / 255),
    ("harbour.jpg", "--norm l2 --epsilon 0.6", "l2", 0.6),
    ("composition.jpg", "--method ifgsm --epsilon 0.011 --target ring --steps 30", "linf", 0.011),
])  # fmt: skip
def test_the_saved_picture_fools_the_network_from_inside_the_ball(
    run, cwd, samples, network, picture, options, norm, epsilon
):
    outcome = run(f"attack {{samples}}/{picture} {{squeezenet}} {options} --out out --json")
    document = outcome.json
    before, after = seen_by_the_model(samples / picture), levels(cwd / "out" / "adversarial.png")
    assert after.shape == before.shape == (224, 224, 3)
    assert (levels(cwd / "out" / "before.png") == before).all()
    change = (after - before) / 255

    # Everything the report says of the file, measured again.
    assert document["linf_saved"] == close(np.abs(change).max(), scale=0.01)
    assert document["l2_saved"] == close(np.sqrt((change**2).sum()))
    length = np.abs(change).max() if norm == "linf" else np.sqrt((change**2).sum())
    assert 0 < length <= epsilon + 1e-9
    assert document[norm] <= epsilon * (1 + 1e-5)
    old, new = network(before), network(after)
    assert document["success"]
    assert document["success_saved"]
    assert int(new.argmax()) != int(old.argmax())
    assert document["targeted"] == ("--target" in options)
    if document["targeted"]:
        assert document["target_label"] == document["after_saved"]["top"][0]["label"] == "ring"
        assert document["target"] == int(new.argmax())
    for key, scores in [("before", old), ("after_saved", new)]:
        for guess in document[key]["top"]:
            assert guess["score"] == close(float(scores[guess["index"]]), A_NETWORK, scale=1)
        assert [guess["index"] for guess in document[key]["top"]] == scores.topk(5).indices.tolist()
    for row in document["classes"]:
        assert row["saved"] == close(float(new[row["index"]]), A_NETWORK, scale=1)

    factor = document["magnification"]
    assert factor == 127 // round(255 * np.abs(change).max())
    magnified = 128 + factor * (after - before)
    assert (levels(cwd / "out" / "perturbation.png") == magnified).all()
    with Image.open(cwd / "out" / "perturbation.png") as image:
        assert image.info["Comment"] == f"128 + {factor} x (adversarial.png - the image)"


def test_the_smallest_change_is_distinguished_from_any_within_epsilon(run):
    any_one = run("attack {star} {healthy} --size 48 -e 8/255 --out any --json").json
    outcome = run("attack {star} {healthy} --size 48 --out least --json")
    least = outcome.json
    assert (any_one["smallest"], any_one["not_within"], least["smallest"]) == (False, None, True)
    assert least["success"]
    assert least["success_saved"]
    assert 0 < least["not_within"] < least["linf"] * (1 + 1e-6)
    assert least["linf"] <= max(1.05 * least["not_within"] * (1 + 1e-6), any_one["linf"])
    assert least["linf_saved"] * 255 == pytest.approx(round(least["linf_saved"] * 255))
    assert len(least["losses"][least["best_run"]]) == least["iterations"] + 1
    assert "--epsilon E is one search" in outcome.err


def test_epsilon_0_saves_the_picture_itself_and_failure_is_not_an_error(run, cwd, samples):
    outcome = run("attack {star} {squeezenet} --steps 3 --epsilon 0 --out out --format table")
    assert (levels(cwd / "out" / "adversarial.png") == seen_by_the_model(samples / "star.png")).all()
    assert (levels(cwd / "out" / "perturbation.png") == 128).all()
    assert (
        "no, the model still predicts star (the exit code is still 0: an attack is not a check)"
        in outcome.out
    )
    assert "warning" not in outcome.err


def test_a_change_too_small_for_8_bits_is_called_lost(run):
    document = run("attack {star} {squeezenet} --steps 5 --epsilon 0.4/255 --out out --json").json
    assert [notice["code"] for notice in document["warnings"]] == ["lost_in_8_bits"]
    assert 0 < document["linf"] <= 0.4 / 255 + 1e-7
    assert document["linf_saved"] == 0


def test_a_saturated_model_is_called_blind_rather_than_robust(run):
    outcome = run("attack {star} {sick} --out out -e 8/255 --json")
    assert [notice["code"] for notice in outcome.json["warnings"]] == ["zero_gradient"]
    assert outcome.json["stuck_runs"] == 1
    assert "exactly zero in 1 of 1 runs" in outcome.err
    assert not outcome.json["success"]


def test_with_the_files_own_size_the_file_is_taken_as_it_is(run):
    first = run("attack {star} {squeezenet} --steps 5 -e 8/255 --out out --json").json
    same = "attack out/adversarial.png {squeezenet} --steps 1 --epsilon 0"
    again = run(f"{same} --size 224,224 --out again --json").json
    assert again["before"] == first["after_saved"]
    resized = run(f"{same} --out resized --json").json
    assert resized["before"] == first["after_prepared"]


def test_gray_models_get_gray_pictures(run, cwd):
    (cwd / "gray.py").write_text(GRAY)
    line = "attack {harbour} -m gray.py:Gray -w none --size 60,200 --norm l2 -e 2"
    document = run(f"{line} --out out --json").json
    with Image.open(cwd / "out" / "adversarial.png") as image:
        assert (image.mode, image.size) == ("L", (200, 60))
    assert document["l2_saved"] <= 2
    assert document["input"]["shape"] == [[1, 1, 60, 200]]
