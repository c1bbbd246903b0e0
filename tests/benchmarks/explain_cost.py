"""Time and peak memory of `explain` for one image, against captum's Grad-CAM and integrated gradients by hand.

captum takes 50 points and says nothing of the error; ours doubles its points until the error is below 1 % twice.
"""

from collections.abc import Iterator
from pathlib import Path

from figure import Figure
from paired import PYTHON, compare_commands

_PEER = Path(__file__).parent / "peers" / "captum_by_hand.py"
_STAR = Path(__file__).parents[2] / "samples" / "star.png"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run both as whole processes."""
    options = [str(_STAR), "--model", "resnet50", "--weights", "none", "--no-save"]
    ours = [PYTHON, "-m", "modelscope_cli", "explain", *options, "--receipt none", "--method"]
    peer = [PYTHON, str(_PEER), str(_STAR)]
    against = "captum's LayerGradCam and IG(50) (resnet50, one image)"
    seconds, peak = compare_commands([*ours, "hirescam,integrated-gradients"], peer, pairs or 3)
    yield peak.at_most(f"peak memory of `explain`, two maps / {against}", 0.5)
    yield seconds.at_most(f"time of `explain`, two maps / {against}", 0.5)
    seconds, _ = compare_commands([*ours, "hirescam"], peer, pairs or 3)
    yield seconds.at_most(f"time of `explain --method hirescam` / {against}", None)
