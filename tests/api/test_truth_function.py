"""`ms.predict(truth=...)` and `predict --truth` are one thing."""

from pathlib import Path

import pytest
from function_and_command import HEALTHY, SAMPLES, STAR, TINY, plain, without
from PIL import Image

import modelscope_cli as ms

IMAGES = [STAR, f"{SAMPLES}/harbour.jpg"]


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    file = tmp_path / "truth.csv"
    file.write_text("star.png,STAR\nharbour.jpg,9\n")
    return file


def test_function_and_command_give_the_same_document(both, truth):
    found = ms.predict(TINY, IMAGES, checkpoint=HEALTHY, truth=truth)
    assert both.said() == ""
    typed = both.typed(f"predict {' '.join(IMAGES)} -m {TINY} -c {HEALTHY} --truth {truth}")
    assert without(plain(found.to_dict())) == without(typed)
    assert typed["truth"]["images"] == 2
    assert typed["predictions"] == []


@pytest.mark.parametrize(("typed", "message"), [
    ("--truth folders --top 3", "'--truth folders' and '--top 3' cannot be combined"),
    ("--truth folders --doctor", "'--doctor' and '--truth folders' cannot be combined"),
    ("--truth {truth} --scores sigmoid --table calibration", "is not available for labels"),
    ("--truth {truth} --columns ece", "unknown column 'ece'"),
])  # fmt: skip
def test_what_means_nothing_is_refused(both, truth, typed, message):
    line = f"predict {' '.join(IMAGES)} -m {TINY} -c {HEALTHY} {typed.format(truth=truth)}"
    error, hint = both.failed(line, 2)
    assert message in error
    assert hint


def test_a_table_of_the_truth_names_the_labels_to_type_before_the_images_have_run(both, tmp_path):
    for name in ("ring", "star", "two words"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "a.png")
    (tmp_path / "net.py").write_text(
        "from torch.nn import *\nNet = lambda: Sequential(AdaptiveAvgPool2d(1), Flatten(), Linear(3, 3))\n"
    )
    line = f"predict {tmp_path} -m {tmp_path}/net.py:Net -w none --size 32 --table measures"
    _, hint = both.failed(line, 4)
    meant = hint.partition("   ")[0].removeprefix("modelscope ")
    assert "--labels 'ring,star,two words'" in meant
    assert both.typed(meant)["truth"]["images"] == 3
