"""Peak memory of `stats` over 200 pictures, against the bare forward over the same."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Figure
from paired import PYTHON, compare_commands
from PIL import Image

N_PICTURES, BATCH = 200, 8
_PEER = Path(__file__).parent / "peers" / "bare_forward.py"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run both as whole processes; memory hardly varies, so few pairs do."""
    with tempfile.TemporaryDirectory() as folder:
        _write_pictures(Path(folder))
        options = ["--model", "resnet50", "--weights", "none", "--batch", str(BATCH)]
        ours = [PYTHON, "-m", "modelscope_cli", "stats", folder, *options]
        peer = [PYTHON, str(_PEER), folder, str(BATCH)]
        seconds, peak = compare_commands(ours, peer, pairs or 2)
    over = f"{N_PICTURES} images / the bare forward (resnet50, batch {BATCH})"
    yield peak.at_most(f"peak memory of `stats` over {over}", 1.05)
    yield seconds.at_most(f"time of `stats` over {over}; two passes, for the deviation from the mean", None)


def _write_pictures(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for number in range(N_PICTURES):
        pixels = torch.randint(0, 256, (12, 16, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).resize((320, 240)).save(folder / f"{number:03}.jpg")
