"""What `watch` records of a training on an accelerator is what it records of it on the CPU."""

from pathlib import Path

import pytest
from device_trainings import AUTOCAST, BEGIN, TRAININGS
from stand_in_runs import Compare, Python, differences

WATCH = ("watch", "--every", "1", "--out", "out", "--json", "demo/script.py")


@pytest.mark.parametrize("training", TRAININGS)
def test_a_training_gives_the_record_it_gives_on_the_cpu(compare: Compare, demo: Path, training: str) -> None:
    (demo / "script.py").write_text(BEGIN + TRAININGS[training])
    documents = compare(*WATCH, rounding=1e-3)
    assert bool(documents[1]["findings"]) == training.startswith("sick")
    assert not documents[1]["warnings"]


def test_autocast_and_a_gradient_scaler_are_followed(
    command: Python, accelerator: str, tmp_path: Path
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "script.py").write_text(BEGIN + AUTOCAST)
    words = (WATCH[0], "--force", *WATCH[1:])
    here, there = (command(*words, device, cwd=tmp_path).json for device in ("cpu", accelerator))
    for key in ("findings", "warnings", "verdict", "recorded", "model"):
        assert here[key] == there[key]
    assert list(differences(here["loss"], there["loss"], rounding=2**-5)) == []
    names = [[(layer["name"], layer["series"]["step"]) for layer in one["layers"]] for one in (here, there)]
    assert names[0] == names[1]
