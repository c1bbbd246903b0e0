"""Findings on the figures of a training: a line with its code at the step, a code behind the row it is about."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modelscope_cli.records.watch import TrainingFinding
from modelscope_cli.report.canvas import ACCENT, MISSING

_POINTS, _LEVEL = 7.5, 10  # of the letters, and from one level of codes to the next
_LEVELS = 4
_CODES = 2  # at one step, or behind one row; how many more are counted
_APART = 0.15  # inches, around the codes behind a row
_LETTER = 0.62 * _POINTS / 72  # inches, about


def codes(findings: Iterable[TrainingFinding]) -> str:
    """Return their codes, each once: `MS705 MS706 +2`."""
    every = list(dict.fromkeys(finding.code for finding in findings))
    more = len(every) - _CODES
    return " ".join(every[:_CODES]) + (f" +{more}" if more > 0 else "")


def mark_steps(panels: Sequence[Any], findings: Sequence[TrainingFinding], width: float) -> Any:
    """Draw a dotted line through all panels at each step since when something is wrong; its codes stand on top.

    Args:
        panels: the uppermost first; the limits of their steps are set.
        width: of the panels, in inches.

    Returns:
        One of the lines, for a legend; None where nothing was found.
    """
    by_step: dict[int, list[TrainingFinding]] = {}
    for finding in findings:
        if finding.since_step is not None:
            by_step.setdefault(finding.since_step, []).append(finding)
    steps = sorted(by_step)
    texts = [codes(by_step[step]) for step in steps]
    low, high = panels[0].get_xlim()
    spans = [
        _span(step, text, high, _LETTER * (high - low) / width)
        for step, text in zip(steps, texts, strict=True)
    ]
    line = None
    for step, text, span, level in zip(steps, texts, spans, _levels(spans), strict=True):
        for axes in panels:
            line = axes.axvline(step, color=ACCENT, lw=0.8, ls=":", label="since when something is wrong")
        if level is not None:
            _write(panels[0], step, text, level, is_right=span[0] < step)
    return line


def n_levels(findings: Sequence[TrainingFinding]) -> int:
    """Return how many levels of codes `mark_steps` may need."""
    return min(_LEVELS, len({finding.since_step for finding in findings} - {None}))


def _span(step: int, text: str, high: float, letter: float) -> tuple[float, float]:
    """Return from where to where a text reaches: to the right of its step, at the right edge to the left."""
    length = (len(text) + 1) * letter
    return (step - length, step) if step + length > high else (step, step + length)


def _levels(spans: Sequence[tuple[float, float]]) -> list[int | None]:
    """Give each text the lowest level on which it meets no other; None where there is no room."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_LEVELS)]
    found: list[int | None] = []
    for start, end in spans:
        level = next((i for i, row in enumerate(taken) if all(end <= a or b <= start for a, b in row)), None)
        found.append(level)
        if level is not None:
            taken[level].append((start, end))
    return found


def _write(axes: Any, step: int, text: str, level: int, *, is_right: bool) -> None:
    axes.annotate(
        text,
        (step, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-2 if is_right else 2, 3 + _LEVEL * level),
        textcoords="offset points",
        ha="right" if is_right else "left",
        va="bottom",
        fontsize=_POINTS,
        color=ACCENT,
        annotation_clip=False,
    )


def by_layer(findings: Iterable[TrainingFinding]) -> dict[str, list[TrainingFinding]]:
    """Return the findings of each layer or parameter, by its label."""
    found: dict[str, list[TrainingFinding]] = {}
    for finding in findings:
        if finding.layer is not None:
            found.setdefault(finding.layer, []).append(finding)
    return found


def mark_rows(
    axes: Any, labels: Sequence[str], findings: Mapping[str, Sequence[TrainingFinding]], low: float
) -> None:
    """On a picture with a row a layer, draw a triangle at the step since when, and the codes at the right."""
    for place, label in enumerate(labels):
        found = findings.get(label, ())
        if not found:
            continue
        since = [finding.since_step for finding in found if finding.since_step is not None]
        if since:
            look = {"ms": 6, "mfc": ACCENT, "mec": "white", "mew": 0.7, "zorder": 5, "clip_on": False}
            axes.plot([max(min(since), low)], [place], ">", **look)
        axes.annotate(
            codes(found),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=_POINTS,
            color=ACCENT,
            annotation_clip=False,
        )


def room_for_codes(labels: Sequence[str], findings: Mapping[str, Sequence[TrainingFinding]]) -> float:
    """Return how many inches `mark_rows` needs at the right."""
    longest = max((len(codes(findings[label])) for label in labels if label in findings), default=0)
    return longest * _LETTER + (_APART if longest else 0.0)


def explain_marks(
    figure: Any, place: tuple[float, float], missing: str, marks: Sequence[Any], *, is_marked: bool
) -> None:
    """Write the legend of a page of heat maps at so many inches from the left and the top.

    Args:
        missing: what gray means; `marks`: of the maps' own.
        is_marked: whether rows are marked with findings.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=MISSING, label=missing), *marks]
    if is_marked:
        look: dict[str, Any] = {"ls": "", "marker": ">", "mfc": ACCENT, "mec": "white"}
        handles.append(Line2D([], [], **look, label="since when something is wrong, and its code"))
    width, height = figure.get_size_inches()
    look = {"ncols": len(handles), "frameon": False, "fontsize": 8, "borderaxespad": 0.0}
    corner = (place[0] / width, 1 - place[1] / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, **look)
