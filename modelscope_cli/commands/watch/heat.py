"""A page of heat maps of a watched training: layers downwards, steps to the right, findings on them."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report import heat_map
from modelscope_cli.report.canvas import new_figure
from modelscope_cli.report.finding_marks import by_layer, explain_marks, mark_rows, room_for_codes
from modelscope_cli.report.layer_names import Name, room_for

_HEAD, _LEGEND, _FOOT, _EDGE = 0.4, 0.25, 0.55, 0.1  # inches


def figure_title(record: WatchRecord, what: str) -> str:
    """Return what every figure of a watched training is headed with."""
    return f"{record.run.model.name}: {what}"


class HeatPage:
    """A figure of `n_maps` heat maps side by side that share their rows.

    Args:
        labels: of the rows, as findings name them.
        above: inches to leave free above the maps, as for a loss.
    """

    def __init__(
        self,
        record: WatchRecord,
        what: str,
        names: Sequence[Name],
        labels: Sequence[str],
        steps: Sequence[int],
        *,
        n_maps: int,
        width: float,
        above: float = 0.0,
    ) -> None:
        self._names, self._labels, self._steps = names, labels, steps
        self._findings = by_layer(record.findings)
        self._codes = room_for_codes(labels, self._findings)
        self.top = _HEAD + _LEGEND + above + heat_map.ABOVE
        height = self.top + heat_map.height_of(len(names)) + _FOOT
        self.figure = new_figure(width, height, figure_title(record, what), is_laid_out=False)
        self._left = room_for(self.figure, names) + _EDGE
        self._each = (width - self._left - _EDGE) / n_maps
        self.width = self._each - heat_map.KEY_ROOM - self._codes - _EDGE
        self.maps: list[Any] = []

    def left(self, number: int) -> float:
        """Return where a map begins, in inches."""
        return self._left + self._each * number

    def draw(self, grid: Any, title: str, **look: Any) -> tuple[Any, Any]:
        """Draw the next map; return its axes, and what a colour key is made of."""
        place = (self.left(len(self.maps)), self.top, self.width)
        names = () if self.maps else self._names
        axes, image = heat_map.draw_map(self.figure, place, grid, self._steps, names, title, **look)
        mark_rows(axes, self._labels, self._findings, self._steps[0])
        self.maps.append(axes)
        return axes, image

    def key(self, image: Any, label: str = "", **how: Any) -> Any:
        """Draw the colour key of the map drawn last."""
        left = self.left(len(self.maps) - 1) + self.width + self._codes
        return heat_map.draw_key(self.figure, left, self.top, len(self._names), image, label, **how)

    def finish(self, missing: str = "not recorded") -> Any:
        """Explain what the maps are marked with, below the title; return the figure."""
        marks = self.maps[0].get_legend_handles_labels()[0]
        is_marked = any(label in self._findings for label in self._labels)
        explain_marks(self.figure, (self._left, _HEAD), missing, marks, is_marked=is_marked)
        return self.figure
