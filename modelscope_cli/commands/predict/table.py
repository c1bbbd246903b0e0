"""The columns of `predict`: one row a guess."""

from dataclasses import dataclass

from modelscope_cli.commands.predict.doctor_table import doctor_sheet
from modelscope_cli.commands.predict.truth_table import truth_sheet
from modelscope_cli.records.doctor import DoctorRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import Guess, PredictRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.facts import certificate_facts, hook_facts, report_facts
from modelscope_cli.report.sheet import Column, Sheet, figure, percentage


@dataclass(frozen=True, slots=True)
class _Row:
    image: str
    head: str | None
    rank: int  # 1-based
    guess: Guess
    is_on: bool | None  # None with softmax, where the first is the answer


def predict_columns(record: PredictRecord | None = None) -> tuple[Column, ...]:
    """All columns; of a record, those with nothing to tell are left out of a person's table."""
    output = record.output if record is not None else None
    has_pixels = record is None or any(
        guess.share is not None for prediction in record.predictions for guess in prediction.top
    )
    has_threshold = record is None or record.threshold is not None
    return (
        Column("image", "image", lambda r: r.image, _image, is_number=False, rank=0),
        Column("rank", "rank", lambda r: r.rank, rank=3),
        Column("index", "class", lambda r: r.guess.index, rank=2),
        Column("label", "label", lambda r: r.guess.label, is_number=False, rank=0),
        percentage("score", "score", lambda r: r.guess.score, rank=0),
        Column("on", "on", lambda r: r.is_on, lambda r: "on" if r.is_on else "", False, 0, has_threshold),
        figure("logit", "logit", lambda r: r.guess.logit, rank=1, is_shown=output != "boxes"),
        Column("head", "head", lambda r: r.head, _head, False, 0, output in (None, "heads")),
        Column("share", "of the image", lambda r: r.guess.share, _share, True, 0, has_pixels),
        Column("box", "box (x0 y0 x1 y1)", lambda r: _box(r, 2), _box, False, 0, output in (None, "boxes")),
    )


def _image(row: _Row) -> str:
    return row.image if row.rank == 1 else ""


def _head(row: _Row) -> str:
    return (row.head or "") if row.rank == 1 else ""


def _share(row: _Row) -> str:
    return "" if row.guess.share is None else numbers.percent(row.guess.share)


def _box(row: _Row, n_decimals: int = 0) -> str:
    return " ".join(f"{side:.{n_decimals}f}" for side in row.guess.box or ())


def predict_sheet(record: PredictRecord | DoctorRecord, table: str | None = None) -> Sheet:
    """Lay out the guesses, image by image, likeliest first; or what the doctor found, or one `table` of a truth."""
    if isinstance(record, DoctorRecord):
        return doctor_sheet(record)
    if record.truth is not None:
        facts = (*_facts(record), *report_facts(record.out_dir, record.files))
        return truth_sheet(record.run, record.truth, facts, table)
    threshold = record.threshold
    return Sheet(
        title=_title(record),
        columns=predict_columns(record),
        rows=tuple(
            _Row(
                prediction.image,
                prediction.head,
                rank,
                guess,
                None if threshold is None else guess.score >= threshold,
            )
            for prediction in record.predictions
            for rank, guess in enumerate(prediction.top, 1)
        ),
        facts=tuple(_facts(record)),
        is_tree=True,
        is_dim=lambda row: (row.rank > 1 and row.guess.box is None) if row.is_on is None else not row.is_on,
    )


def _title(record: PredictRecord) -> str:
    model, n = record.run.model, len({prediction.image for prediction in record.predictions})
    what = counted(n, "image")
    return (
        f"{model.name} ({model.class_name}, weights {model.weights.resolved}) on {what}, {record.run.device}"
    )


def _facts(record: PredictRecord) -> list[tuple[str, str]]:
    facts = [("score", _score_words(record))]
    if record.output == "boxes":
        without = sum(not prediction.top for prediction in record.predictions)
        if without:
            facts.append(("no box", f"in {without} of {len(record.predictions)} images"))
    if record.temperature != 1:
        facts.append(("temperature", f"logits divided by {record.temperature:g} before that"))
    return [*facts, *hook_facts(record.hooks), *certificate_facts(record.certificate)]


def _score_words(record: PredictRecord) -> str:
    if record.output == "boxes":
        return "of the box, as the model outputs it; the best first"
    unit = "per pixel" if record.output == "pixels" else "per image"
    classes = "its classes" if record.output == "heads" else f"{record.classes} classes"
    if record.threshold is None:
        words = f"softmax: one of {classes} {unit}, all scores add up to 1"
    else:
        words = f"sigmoid: each of {classes} on its own, on from a score of {record.threshold:g}"
    over = "; the mean over the pixels that are the class" if record.output == "pixels" else ""
    return words + over
