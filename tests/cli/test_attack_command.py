"""`modelscope attack`: what is found, what lands on disk, and whether the file says the same."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tolerance import A_NETWORK, close
from torchvision.models import squeezenet1_1
from torchvision.transforms import v2


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


def test_a_change_too_small_for_8_bits_is_called_lost(run):
    document = run("attack {star} {squeezenet} --steps 5 --epsilon 0.4/255 --out out --json").json
    assert [notice["code"] for notice in document["warnings"]] == ["lost_in_8_bits"]
    assert 0 < document["linf"] <= 0.4 / 255 + 1e-7
    assert document["linf_saved"] == 0


def test_with_the_files_own_size_the_file_is_taken_as_it_is(run):
    first = run("attack {star} {squeezenet} --steps 5 -e 8/255 --out out --json").json
    same = "attack out/adversarial.png {squeezenet} --steps 1 --epsilon 0"
    again = run(f"{same} --size 224,224 --out again --json").json
    assert again["before"] == first["after_saved"]
    resized = run(f"{same} --out resized --json").json
    assert resized["before"] == first["after_prepared"]
