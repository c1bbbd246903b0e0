"""Time and memory of `summary` as a whole process, against torchinfo."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figure import Figure
from paired import PYTHON, Ratio, compare_commands
from torchvision.models import get_model_weights

_PEER = Path(__file__).parent / "peers" / "torchinfo_summary.py"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare a very large and a usual model; both sides print a table of every layer."""
    seconds, peak = _compare("regnet_y_128gf", pairs or 3)
    yield seconds.at_most("time of `summary regnet_y_128gf` / torchinfo", 0.3)
    yield peak.at_most("peak memory of `summary regnet_y_128gf` / torchinfo", 0.3)
    seconds, peak = _compare("resnet34", pairs or 7)
    yield seconds.at_most("time of `summary resnet34` / torchinfo", 0.9)
    yield peak.at_most("peak memory of `summary resnet34` / torchinfo", None)
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            _ours("resnet34"), env=os.environ | {"MSCOPE_CACHE": cache}, capture_output=True, check=True
        )
        seconds, _ = _compare("resnet34", pairs or 7, cache)
    yield seconds.at_most("time of a second `summary resnet34` / torchinfo", 0.15)


def _compare(name: str, pairs: int, cache: str = "0") -> tuple[Ratio, Ratio]:
    (side,) = get_model_weights(name).DEFAULT.transforms().crop_size
    environment = os.environ | {"MSCOPE_CACHE": cache}
    return compare_commands(_ours(name), [PYTHON, str(_PEER), name, str(side)], pairs, environment)


def _ours(name: str) -> list[str]:
    return [PYTHON, "-m", "modelscope_cli", "summary", name, "--format", "table"]
