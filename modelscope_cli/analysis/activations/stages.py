"""One output a stage of a deep network, where nobody asked for particular layers."""

from collections.abc import Sequence
from itertools import groupby

from modelscope_cli.analysis.activations.maps import Exhibit
from modelscope_cli.report.layer_axis import block_of

FEW = 40  # outputs; all of them can be looked at
_MOST_BLOCKS = 12
_FEWEST_STAGES = 3


def one_a_stage(exhibits: Sequence[Exhibit]) -> list[Exhibit]:
    """Return the output at the end of each stage, whose maps have one size, in order; all where they are few.

    A network whose maps all have one size, such as a vision transformer, gives the last output of each of its
    blocks, or of a dozen of them.
    """
    drawable = [exhibit for exhibit in exhibits if exhibit.maps is not None]
    if len(drawable) <= FEW:
        return list(exhibits)
    spatial = [exhibit for exhibit in drawable if max(_size(exhibit), default=1) > 1]
    by_size = {_size(exhibit): exhibit for exhibit in spatial}
    # The first layers of a block may still have the size of the stage before: the end of a block counts for more.
    ends = [list(run)[-1] for _, run in groupby(spatial, lambda exhibit: block_of(exhibit.record.name))]
    by_size |= {_size(exhibit): exhibit for exhibit in ends}
    if len(by_size) >= _FEWEST_STAGES:
        return sorted(by_size.values(), key=lambda exhibit: exhibit.record.order)
    blocks = ends or drawable
    n = min(_MOST_BLOCKS, len(blocks))
    return [blocks[round((len(blocks) - 1) * i / max(n - 1, 1))] for i in range(n)]


def _size(exhibit: Exhibit) -> tuple[int, ...]:
    """Return height and width of its maps; nothing of a vector."""
    return tuple(exhibit.maps.shape[1:]) if exhibit.maps is not None else ()
