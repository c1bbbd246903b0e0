"""Peak memory of `diff` of float32 and bfloat16, which runs both at once, against one run of `stats`."""

from collections.abc import Iterator

from figure import Figure
from paired import PYTHON, compare_commands

_MODEL = ("--weights", "none", "--input-shape", "1,3,224,224", "--quiet")
_TOOL = (PYTHON, "-m", "modelscope_cli")


def measure(pairs: int | None) -> Iterator[Figure]:
    """Run both as whole processes; memory hardly varies, so few pairs do."""
    # Whatever bfloat16 costs in precision is no matter here: a difference would end with 1.
    ours = [*_TOOL, "diff", "resnet50", *_MODEL, "--b-dtype", "bfloat16", "--tolerance", "1e9"]
    peer = [*_TOOL, "stats", "--model", "resnet50", *_MODEL]
    seconds, peak = compare_commands(ours, peer, pairs or 2)
    yield peak.at_most("peak memory of `diff` of float32 and bfloat16 / one run of `stats` (resnet50)", 1.3)
    yield seconds.at_most("time of the same; two models", None)
