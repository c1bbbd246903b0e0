"""CPU seconds to a first answer, against a script that imports torchvision, builds the model and runs it once."""

import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from figure import Figure
from paired import PYTHON, compare_cpu
from photos import write_photos

_PEER = str(Path(__file__).parent / "peers" / "first_pass.py")
# Command, model, what the script runs, target
_CASES = (
    (["summary", "resnet34"], "resnet34", "forward", 0.1),
    (["stats", "--model", "resnet34", "--weights", "none"], "resnet34", "forward", 0.7),
    (["grads", "--model", "resnet34", "--weights", "none"], "resnet34", "backward", 1.0),
    (["explain", "resnet18", "000000.jpg", "--weights", "none"], "resnet18", "forward", 1.8),
)


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run each on one thread in an empty folder, which gets what the commands write by default."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_photos(Path(), 1, (500, 375))
        for arguments, model, what, target in _CASES:
            ours, peer = [PYTHON, "-m", "modelscope_cli", *arguments], [PYTHON, _PEER, model, what]
            figure = f"CPU seconds of `{' '.join(arguments)}` / a script that runs one {what}"
            yield compare_cpu(ours, peer, pairs or 7).at_most(figure, target)
