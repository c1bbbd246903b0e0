"""The tables of `predict`: predictions, those of `--truth`, and that of `--doctor`."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import (
    BINS,
    ClassQuality,
    ConfidenceBin,
    Confusion,
    DoctorRecord,
    Guess,
    Mistake,
    PredictRecord,
    TruthReport,
    ValueRange,
    Variation,
)
from modelscope_cli.records.run import Run
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts, shortened
from modelscope_cli.report.sheet import Column, Sheet, field_columns, figure, percentage

MEASURES = "measures"
# Above this score of a wrong class the label may be the error, if the model is right about most other images.
_SURE, _MOSTLY = 0.999, 0.8
_LONG = 8  # images, whose table is about as long as a screen
_FEW = 16  # numbers of an image that a terminal shows
Facts = tuple[tuple[str, str], ...]


def _words(key: str, title: str, value: Callable[[Any], str]) -> Column:
    return Column(key, title, value, is_number=False, rank=0)


def truth_columns() -> dict[str, tuple[Column, ...]]:
    """Return the columns of all tables of `--truth`."""
    return {
        MEASURES: (
            Column("measure", "measure", lambda r: r.key, lambda r: r.name, is_number=False, rank=0),
            percentage("value", "value", lambda r: r.value, rank=0),
            percentage("low", "low", lambda r: r.low, rank=0),
            percentage("high", "high", lambda r: r.high, rank=0),
        ),
        "classes": (
            *field_columns(ClassQuality, "index"),
            _words("label", "label", lambda r: r.label or str(r.index)),
            *field_columns(ClassQuality, "n predicted correct precision recall f1"),
        ),
        "confusions": (
            *field_columns(Confusion, "truth"),
            _words("truth_label", "truth label", lambda r: r.truth_label or str(r.truth)),
            *field_columns(Confusion, "predicted"),
            _words("predicted_label", "predicted label", lambda r: r.predicted_label or str(r.predicted)),
            *field_columns(Confusion, "count share"),
        ),
        "calibration": (
            *field_columns(ConfidenceBin, "low", text=lambda r: f"{r.low:.3f}"),
            *field_columns(ConfidenceBin, "high", text=lambda r: f"{r.high:.3f}"),
            *field_columns(ConfidenceBin, "n confidence accuracy"),
        ),
        "worst": (
            *field_columns(Mistake, "image"),
            _words("truth_label", "truth label", truth_words),
            *field_columns(Mistake, "predicted"),
            _words("predicted_label", "predicted label", lambda r: r.predicted_label or str(r.predicted)),
            *field_columns(Mistake, "confidence"),
        ),
    }


def truth_words(mistake: Mistake) -> str:
    """Return the true classes of an image, or that it has none."""
    pairs = zip(mistake.truth, mistake.truth_labels, strict=True)
    return ", ".join(label or str(index) for index, label in pairs) or "none"


def truth_sheet(run: Run, report: TruthReport, facts: Facts, table: str | None = None) -> Sheet:
    """Return one of the tables. `facts`: further lines below it."""
    table = table or MEASURES
    tables = tables_of(report)
    if table not in tables:
        message = f"'--table {table}' is not available for {report.kind}"
        raise UsageError(message, f"--table {next(iter(tables))}   one of {', '.join(tables)}")
    rows = tables[table]
    return Sheet(
        title=headline(run, report.images),
        columns=truth_columns()[table],
        rows=rows,
        facts=(*_truth_facts(report, table, len(rows)), *facts),
        definitions=("score", "low, high"),
        is_dim=lambda row: isinstance(row, ClassQuality) and not row.n + row.predicted,
    )


def tables_of(report: TruthReport) -> dict[str, tuple[Any, ...]]:
    """Return the rows of every table for this kind of ground truth."""
    tables: dict[str, tuple[Any, ...]] = {MEASURES: tuple(report.measures()), "classes": report.classes}
    if report.kind == "classes":
        tables |= {"confusions": report.confusions, "calibration": report.bins}
    return tables | {"worst": report.worst}


def _truth_facts(report: TruthReport, table: str, n_rows: int) -> Facts:
    facts = []
    if report.accuracy is not None and table != MEASURES:  # where they are rows
        facts.append(("accuracy", numbers.accuracy_words(report.accuracy, report.images)))
    facts += [("other order", report.other_order)] if report.other_order else []
    right = report.accuracy or report.exact_match
    wrong = round((1 - right.value) * report.images) if right is not None else 0
    if table == "worst" and wrong > n_rows:
        facts.append((table, f"{n_rows} of {wrong:,} misclassified images shown, the highest scores"))
    if table == MEASURES:
        facts.append(("low, high", "95 % confidence interval"))
    sure = sum(one.confidence > _SURE for one in report.worst)
    if sure and report.accuracy is not None and report.accuracy.value > _MOSTLY:
        words = f"another class has a score above {numbers.percent(_SURE)}"
        where = " (--table worst)" * (table != "worst")
        facts.append(("check labels", f"{counted(sure, 'image')}: {words}{where}"))
    if report.ece is not None and table == "calibration":
        ece = f"mean |accuracy - confidence| {numbers.percent(report.ece)}, in {BINS} bins of equal width"
        facts.append(("calibration", ece))
    missing = sum(row.n == 0 for row in report.classes)
    if missing:
        left_out = ", and are not in the means" * (report.kind == "labels" and table == MEASURES)
        facts.append(("not seen", f"{missing} of {len(report.classes)} classes have no image{left_out}"))
    nothing = {"worst": "no image is misclassified", "confusions": "no class is confused with another"}
    facts += [] if n_rows else [(table, nothing[table])]
    return tuple(facts)


def answer(record: PredictRecord | DoctorRecord) -> str:
    """Return how often the model is right and how well its scores tell; without truth, what it predicts."""
    if isinstance(record, DoctorRecord):
        return _doctor_answer(record)
    if record.truth is not None:
        return _truth_answer(record.truth)
    images = len({prediction.image for prediction in record.predictions})
    if record.output == "depth":
        medians = sorted(one.values.median for one in record.predictions if one.values)
        between = f", medians {medians[0]:.4g} to {medians[-1]:.4g}" if medians else ""
        return f"{counted(images, 'depth map')}{between}"
    if record.output == "vectors":
        ends = [one.values for one in record.predictions if one.values]
        least, greatest = min(one.least for one in ends), max(one.greatest for one in ends)
        values = f"values {least:.4g} to {greatest:.4g}" if least != greatest else f"value {least:.4g}"
        return f"{counted(images, 'image')}: {values}"
    found = [(prediction, prediction.top[0]) for prediction in record.predictions if prediction.top]
    firsts = [(prediction, guess) for prediction, guess in found if not math.isnan(guess.score)]
    if not firsts:
        return f"{counted(images, 'image')}: {'the scores are NaN' if found else 'nothing found'}"
    best, guess = max(firsts, key=lambda pair: pair[1].score)
    said = f"{guess.label or f'class {guess.index}'}, {numbers.percent(guess.score)}"
    if len(record.predictions) == 1 and record.output != "boxes":
        return said
    if record.output == "boxes":
        n = sum(len(prediction.top) for prediction in record.predictions)
        return f"{n} boxes in {counted(images, 'image')}; the best is {said}"
    counts = Counter(guess.label or f"class {guess.index}" for _, guess in firsts)
    often = ", ".join(f"{label} ({n})" for label, n in counts.most_common(3))
    is_tie = [*counts.values()].count(max(counts.values())) > 1
    most = f"{len(counts)} classes predicted{':' if is_tie else ', most often'} {often}"
    if len(counts) == 1:
        most = f"all are predicted as {next(iter(counts))}"
    n_nan = len(found) - len(firsts)
    most += f"; the scores of {n_nan} more are NaN" if n_nan else ""
    of = f"{counted(images - n_nan, 'image')}: {most}"
    return f"{of}; the highest score is {said} ({shortened('/'.join(best.image.split('/')[-2:]))})"


def _truth_answer(truth: TruthReport) -> str:
    words = []
    if truth.accuracy is not None:
        share = truth.accuracy
        low, high = (f"{100 * end:.1f}".removesuffix(".0") for end in (share.low, share.high))
        words.append(f"{numbers.percent(share.value)} right ({low} to {high})")
        words += [_calibrated(truth)] if truth.ece is not None else []
    else:
        words = [f"{measure.name} {numbers.percent(measure.value)}" for measure in truth.measures()[:3]]
    broken = sum(one.count for one in truth.not_judged)
    words += [f"{counted(broken, 'image')} not judged"] if broken else []
    return f"{counted(truth.images, 'image')}: {', '.join(words) or 'nothing to measure'}"


def _calibrated(truth: TruthReport) -> str:
    """Return by how much scores are too low or too high on average, from two standard errors sqrt(p (1 - p)) on."""
    bins = [(one.n, one.confidence, one.accuracy or 0.0) for one in truth.bins if one.confidence is not None]
    gap = sum(n * (accuracy - confidence) for n, confidence, accuracy in bins) / truth.images
    error = sum(n * confidence * (1 - confidence) for n, confidence, _ in bins) ** 0.5 / truth.images
    if abs(gap) <= 2 * error:
        return f"calibration error {numbers.percent(truth.ece)}"
    way = "too low" if gap > 0 else "too high"
    return f"scores {100 * abs(gap):.0f} percentage points {way} on average"


def _doctor_answer(record: DoctorRecord) -> str:
    *others, meant = record.variations
    best = max(record.variations, key=lambda row: row.accuracy or 0)
    n_changed = sum(row.changed > 0 for row in others)
    if meant.accuracy is not None and best.accuracy is not None:
        right, most = (numbers.percent(one.accuracy) for one in (meant, best))
        gain = (best.accuracy - meant.accuracy) * record.images
        if gain > 2 * best.changed**0.5:  # of as many changes, half are for the better by chance
            return f"'{best.name}' is best: {most} right, against {right} of the reference"
        if record.other_order is None:
            if not gain:
                ties = sum(one.accuracy == meant.accuracy for one in others)
                as_well = f"{ties or 'none'} of {len(others)} {'does' if ties == 1 else 'do'} as well"
                return f"No variation is better than yours ({right} right): {as_well}"
            nearest = f"'{best.name}', the best of {len(others)}, has {most}, which may be chance"
            return f"No variation is clearly better than yours ({right} right): {nearest}"
    if not n_changed:
        predictions = counted(record.images, "prediction")
        return f"None of {len(others)} variations changes any of {predictions}"
    change = "changes" if n_changed == 1 else "change"
    words = f"{n_changed} of {len(others)} variations {change} at least one prediction"
    return f"{words}; '{others[0].name}' changes {others[0].changed} of {record.images}"


def doctor_columns(images: int = 0) -> tuple[Column, ...]:
    return (
        *field_columns(Variation, "variation kind"),
        Column("what", "what", _what, is_number=False, rank=4, wraps=True),
        *field_columns(Variation, "affected"),
        *field_columns(
            Variation,
            "changed",
            text=lambda r: f"{r.changed} of {images}" if r.affected or r.kind == "meant" else "no effect",
        ),
        *field_columns(Variation, "probability_change kl_divergence"),
        *field_columns(Variation, "accuracy"),
    )


def doctor_sheet(record: DoctorRecord) -> Sheet:
    """Return the variations, the most harmful first."""
    told = ("other order", record.other_order), ("left out", record.left_out)
    known = (("verdict", _doctor_answer(record)), ("reference", record.meant))
    return Sheet(
        title=headline(record.run, record.images),
        columns=doctor_columns(record.images),
        rows=record.variations,
        facts=(*known, *((name, why) for name, why in told if why)),
        is_dim=lambda row: not row.affected,
        is_bad=lambda row: row.changed > 0,
    )


def _what(row: Variation) -> str:
    if row.kind == "meant":
        return "the preprocessing that the others are compared to"
    return row.what if row.affected else f"{row.what}: no effect on these images"


@dataclass(frozen=True, slots=True)
class _GuessRow:
    image: str
    rank: int  # 1-based
    guess: Guess | None  # none of what is not scores
    is_on: bool | None  # None with softmax, where the first is the prediction
    values: ValueRange | None = None
    numbers: tuple[float, ...] = ()


def predict_columns(record: PredictRecord | None = None) -> tuple[Column, ...]:
    """Return all columns; with a record, empty ones are hidden in the terminal."""
    output = record.output if record is not None else None
    has_pixels = record is None or any(
        guess.share is not None for prediction in record.predictions for guess in prediction.top
    )
    has_several = record is None or any(len(one.top) > 1 for one in record.predictions)
    has_threshold = record is None or record.threshold is not None
    image = Column(
        "image", "image", lambda r: r.image, lambda r: r.image if r.rank == 1 else "", is_number=False, rank=0
    )
    if output in ("depth", "vectors"):
        most = max((len(one.numbers) for one in record.predictions), default=0) if record else 0
        return (image, *_number_columns(most, has_numbers=output == "vectors"))
    return (
        image,
        Column("rank", "rank", lambda r: r.rank, rank=3, is_shown=has_several),
        Column("index", "index", lambda r: r.guess.index, rank=1),
        Column("label", "label", lambda r: r.guess.label, is_number=False, rank=0),
        percentage("score", "score", lambda r: r.guess.score, rank=0),
        Column("on", "on", lambda r: r.is_on, lambda r: "on" if r.is_on else "", False, 0, has_threshold),
        figure("logit", "logit", lambda r: r.guess.logit, rank=1, is_shown=output != "boxes"),
        percentage("share", "share", lambda r: r.guess.share, rank=0, is_shown=has_pixels),
        Column("box", "box (x0 y0 x1 y1)", lambda r: _box(r, 2), _box, False, 0, output in (None, "boxes")),
    )


def _number_columns(most: int = 0, *, has_numbers: bool = True) -> tuple[Column, ...]:
    """Return the columns of numbers that are not scores; of an image with at most `_FEW` they are shown themselves.

    Args:
        most: how many an image has.
    """
    names, is_few = ("least", "median", "mean", "greatest"), 0 < most <= _FEW
    each = Column(
        "numbers",
        "numbers",
        lambda r: " ".join(map(repr, r.numbers)),
        lambda r: "  ".join(map(numbers.number, r.numbers)),
        most == 1,
        rank=0,
        is_shown=is_few,
        wraps=True,
    )
    ends = (figure(name, name, attrgetter(f"values.{name}"), rank=0, is_shown=not is_few) for name in names)
    return (*[each] * has_numbers, *ends)


def every_column() -> tuple[Column, ...]:
    truth = itertools.chain(*truth_columns().values())
    return (*predict_columns(), *_number_columns(), *truth, *doctor_columns())


def _box(row: _GuessRow, n_decimals: int = 0) -> str:
    return " ".join(f"{side:.{n_decimals}f}" for side in (row.guess and row.guess.box) or ())


def first_table(record: PredictRecord | DoctorRecord) -> str | None:
    """Choose the table of images of class folders with one guess each: the wrong ones, else the classes."""
    if isinstance(record, DoctorRecord) or record.truth is None:
        return None
    if {len(one.top) for one in record.predictions} != {1}:
        return None
    truth = record.truth
    return "worst" if truth.worst else "classes" if len(truth.classes) < truth.images else None


def predict_sheet(record: PredictRecord | DoctorRecord, table: str | None = None) -> Sheet:
    """Return the predictions of each image, likeliest first; or the doctor's table, or one `table` of metrics."""
    if isinstance(record, DoctorRecord):
        return doctor_sheet(record)
    if record.truth is not None and (table or not record.predictions):
        return truth_sheet(record.run, record.truth, tuple(_facts(record)), table)
    threshold = record.threshold
    n_images = counted(len({prediction.image for prediction in record.predictions}), "image")
    return Sheet(
        title=f"{record.run.model.described} on {n_images}, {record.run.device}",
        columns=predict_columns(record),
        rows=tuple(
            _GuessRow(prediction.image, rank, guess, None if threshold is None else guess.score >= threshold)
            for prediction in record.predictions
            for rank, guess in enumerate(prediction.top, 1)
        )
        + tuple(
            _GuessRow(one.image, 1, None, None, one.values, one.numbers)
            for one in record.predictions
            if one.values
        ),
        facts=(*(_truth_facts(record.truth, "", 1) if record.truth else ()), *_facts(record)),
        definitions=("score",),
        is_tree=True,
        is_dim=lambda row: (row.rank > 1 and row.guess.box is None) if row.is_on is None else not row.is_on,
    )


RANDOM = "random: the predictions say nothing about the images"


def _facts(record: PredictRecord) -> list[tuple[str, str]]:
    is_of_numbers = record.output in ("depth", "vectors")
    facts = [("values" if is_of_numbers else "score", _score_words(record))]
    if record.run.model.weights.resolved == "random":
        facts.append(("weights", RANDOM))
    if record.output == "boxes":
        without = sum(not prediction.top for prediction in record.predictions)
        scores = [guess.score for prediction in record.predictions for guess in prediction.top]
        if len({*scores}) == 1 < len(scores):
            facts.append(("scores", "the same for all boxes shown, so their order is arbitrary"))
        if without:
            facts.append(("no box", f"in {without} of {len(record.predictions)} images"))
    if record.truth is None and len(record.predictions) > _LONG:
        facts.append(("answer", answer(record)))
    return [*facts, *hook_facts(record.hooks)]


def _score_words(record: PredictRecord) -> str:
    if record.output == "depth":
        return "values of the map as the model outputs them"
    if record.output == "vectors":
        most = max((len(one.numbers) for one in record.predictions), default=0)
        if most == 1:
            return "as the model outputs them; if they are logits of a class, add --scores sigmoid"
        many = f"; --format csv has all {most} numbers of each" if most > _FEW else ""
        return f"as the model outputs them, not class scores{many}"
    if record.output == "boxes":
        return "score of the box as the model outputs it, best first; explain --target box:0 explains rank 1"
    unit = "per pixel" if record.output == "pixels" else "per image"
    classes = f"{record.classes} classes"
    if record.threshold is None:
        words = f"softmax: one of {classes} {unit}; the scores sum to 1"
        if record.output == "classes" and not any(
            one.label for each in record.predictions for one in each.top
        ):
            words += "; if they are not scores of classes, add --output-kind embedding"
    else:
        words = f"sigmoid: each of {classes} scored independently; predicted if {record.threshold:g} or more"
    over = "; mean over the pixels of the class" if record.output == "pixels" else ""
    return words + over
