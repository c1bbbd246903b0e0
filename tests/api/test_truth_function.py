"""`ms.predict(truth=...)` and `predict --truth` are one thing."""

from pathlib import Path

import pytest
from function_and_command import HEALTHY, SAMPLES, STAR, TINY, plain, without

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
    ("--table worst", "'--table worst' needs --truth"),
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
