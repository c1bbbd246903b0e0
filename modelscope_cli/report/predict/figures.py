"""The figures of `predict --truth` and its output folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.predict import BINS, DoctorRecord, DrawnMap, PredictedImages, PredictRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import ABOVE, ACCENT, INK, LINE, new_figure
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.predict.table import predict_sheet, tables_of, truth_words
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import View

_COLUMNS = 6


def draw_reliability(record: PredictRecord | DoctorRecord) -> Any:
    """Draw for every bin of confidence the accuracy, its gap to the mean confidence and the number of images."""
    truth = getattr(record, "truth", None)
    if truth is None or truth.ece is None:
        message = "predict draws a figure only with --truth and one class per image"
        raise UsageError(message, "--truth folders")
    heading = f"{record.run.model.heading}\ncalibration error {numbers.percent(truth.ece)}"
    figure = new_figure(6.4, 7.0, heading)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    filled_bins = [one for one in truth.bins if one.n]
    middles = [(one.low + one.high) / 2 for one in filled_bins]
    width = 0.92 / BINS
    most = max((one.n for one in filled_bins), default=1)
    confidences = [one.confidence for one in filled_bins]
    for middle, one in zip(middles, filled_bins, strict=True):
        low, high = sorted((one.accuracy, one.confidence))
        upper.bar(middle, one.accuracy, width, color=LINE, alpha=0.25 + 0.75 * one.n / most)
        upper.bar(middle, high - low, width, low, fill=False, hatch="///", edgecolor=ACCENT, lw=0.6)
    upper.bar(0, 0, color=LINE, label="accuracy; paler means fewer images")
    upper.bar(0, 0, fill=False, hatch="///", edgecolor=ACCENT, lw=0.6, label="gap to mean confidence")
    upper.plot(middles, confidences, "_", ms=14, mew=1.8, color=ACCENT, clip_on=False)
    upper.plot([0, 1], [0, 1], color=INK, lw=0.8, ls="--", label="perfectly calibrated")
    upper.set_ylim(0, 1)
    upper.set_ylabel("share of the images")
    upper.legend(**ABOVE, ncols=2)
    bars = lower.bar(middles, [one.n for one in filled_bins], width, color=LINE)
    lower.bar_label(bars, fontsize=7, color=INK)
    lower.margins(y=0.2)
    lower.set_ylabel("images")
    lower.set_xlabel("confidence: score of the predicted class")
    lower.set_xlim(0, 1)
    return figure


def draw_worst(record: PredictRecord, images: Sequence[Any]) -> Any:
    """Draw the images with the highest score of a wrong class, the worst first.

    Args:
        images: `(3, H, W)` uint8 as preprocessed, one per mistake.
    """
    assert record.truth is not None
    n_columns = min(_COLUMNS, len(images))
    n_rows = -(-len(images) // n_columns)
    figure = new_figure(
        2.1 * n_columns + 0.4, 2.7 * n_rows + 0.5, f"{record.run.model.heading}: worst images"
    )
    cells = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    for axes in cells:
        axes.set_axis_off()
    for axes, one, image in zip(cells, record.truth.worst, images, strict=False):
        axes.imshow(image.permute(1, 2, 0).numpy())
        label = one.predicted_label or str(one.predicted)
        said = shortened(f"{shortened(label)} {numbers.percent(one.confidence)}")
        lines = (said, f"is {shortened(truth_words(one))}", shortened("/".join(one.image.split("/")[-2:])))
        axes.set_title("\n".join(lines), fontsize=7, color=INK)
    return figure


_LISTED = 6  # classes named above a map


def draw_maps(record: PredictRecord, drawn: Sequence[DrawnMap]) -> Any:
    """Draw the depths or the classes of the pixels of each image next to it; of volumes the middle slice."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    is_depth = not any(one.values.dtype.is_floating_point is False for one in drawn)
    pairs = min(2, len(drawn))
    n_rows = -(-len(drawn) // pairs)
    figure = new_figure(6.4 * pairs, 3.4 * n_rows + 0.5, f"{record.run.model.heading}: {record.output}")
    cells = figure.subplots(n_rows, 2 * pairs, squeeze=False).flatten()
    for axes in cells:
        axes.set_axis_off()
    tops = {prediction.image: prediction.top for prediction in record.predictions}
    many = max(record.classes, 2)
    colours = ListedColormap([colormaps["tab20"](n % 20) for n in range(many)])
    for one, left, right in zip(drawn, cells[::2], cells[1::2], strict=False):
        shown = one.values if one.values.ndim == 2 else one.values[len(one.values) // 2]
        if one.picture is not None:
            left.imshow(one.picture.permute(1, 2, 0).numpy())
        left.set_title(shortened("/".join(one.name.split("/")[-2:])), fontsize=8, color=INK)
        if is_depth:
            figure.colorbar(right.imshow(shown.numpy(), cmap="viridis"), ax=right, fraction=0.046)
            low, high = (numbers.number(float(end)) for end in one.values.aminmax())
            right.set_title(f"values {low} to {high}", fontsize=8, color=INK)
            continue
        right.imshow(shown.numpy(), cmap=colours, vmin=-0.5, vmax=many - 0.5, interpolation="nearest")
        keys = [(colours(guess.index), guess) for guess in tops.get(one.name, ())[:_LISTED]]
        handles = [right.plot([], [], "s", color=colour)[0] for colour, _ in keys]
        words = [
            f"{shortened(guess.label or str(guess.index), 16)} {numbers.percent(guess.share)}"
            for _, guess in keys
        ]
        right.legend(handles, words, ncols=3, **ABOVE)
    return figure


RELIABILITY, WORST, MAPS, VALUES = "reliability.png", "worst.png", "maps.png", "maps.safetensors"


def save_files(record: PredictRecord, folder: Path) -> PredictRecord:
    """Write the tables, the figures and the maps in the size of the input, as far as the record has them."""
    truth, kept = record.truth, getattr(record, "kept", None)
    maps = kept.maps() if isinstance(kept, PredictedImages) else ()
    worst = kept.worst() if isinstance(kept, PredictedImages) else ()
    figures: dict[str, Any] = {MAPS: draw_maps(record, maps)} if maps else {}
    tables: dict[str, Sheet] = {}
    if truth is not None:
        figures |= {RELIABILITY: draw_reliability(record)} if truth.ece is not None else {}
        figures |= {WORST: draw_worst(record, worst)} if worst else {}
        tables = {f"{table}.csv": predict_sheet(record, table) for table in tables_of(truth)}
    saved = View.write(record, folder, figures, tables)
    if not maps:
        return saved
    from modelscope_cli.tensor_file import write_tensors

    write_tensors(folder / VALUES, {f"{n}.{one.name}": one.values for n, one in enumerate(maps)})
    return saved.with_changes(files=(MAPS, VALUES, *saved.files[1:]))
