"""`ms.predict(truth=...)` and `predict --truth` are one thing."""

from pathlib import Path

import pytest
from function_and_command import HEALTHY, SAMPLES, STAR, TINY, plain, without
from PIL import Image

import modelscope_cli as ms
from modelscope_cli.errors import UsageError

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


def test_what_it_is_given_of_each_batch_is_what_it_would_be_without_a_truth(truth):
    parts = []
    found = ms.predict(TINY, IMAGES, checkpoint=HEALTHY, batch=1, truth=truth, each=parts.append)
    whole = ms.predict(TINY, IMAGES, checkpoint=HEALTHY, batch=1)
    assert tuple(one for part in parts for one in part.predictions) == whole.predictions
    assert found.predictions == ()


@pytest.mark.parametrize(("typed", "message"), [
    ("--table worst", "'--table worst' needs --truth"),
    ("--truth folders --top 3", "'--truth folders' and '--top 3' exclude each other"),
    ("--truth folders --doctor", "'--doctor' and '--truth folders' exclude each other"),
    ("--truth {truth} --scores sigmoid --table calibration", "does not exist for a truth of labels"),
    ("--truth {truth} --columns ece", "unknown column 'ece'"),
])  # fmt: skip
def test_what_means_nothing_is_refused(both, truth, typed, message):
    line = f"predict {' '.join(IMAGES)} -m {TINY} -c {HEALTHY} {typed.format(truth=truth)}"
    error, hint = both.failed(line, 2)
    assert message in error
    assert hint


def test_a_folder_that_is_called_after_no_class_is_named(both):
    error, hint = both.failed(f"predict {STAR} -m {TINY} -c {HEALTHY} --truth folders", 4)
    assert "the names of the folders: 'samples' is not among the 10 classes" in error
    assert "--labels" in hint
    with pytest.raises(UsageError, match="is not in a folder"):
        ms.predict(TINY, Image.open(STAR), checkpoint=HEALTHY, truth="folders")
