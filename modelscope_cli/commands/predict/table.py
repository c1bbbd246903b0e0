"""The columns of `predict`: one row a guess."""

from dataclasses import dataclass

from modelscope_cli.records.predict import Guess, PredictRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.facts import hook_facts
from modelscope_cli.report.sheet import Column, Sheet, choose_columns


@dataclass(frozen=True, slots=True)
class _Row:
    image: str
    rank: int  # 1-based
    guess: Guess
    is_on: bool | None  # None with softmax, where the first is the answer


def predict_columns(has_threshold: bool = True) -> tuple[Column, ...]:
    """All columns; whether a class is on is for sigmoid only."""
    return (
        Column("image", "image", lambda r: r.image, _image, is_number=False, rank=0),
        Column("rank", "rank", lambda r: r.rank, rank=3),
        Column("index", "class", lambda r: r.guess.index, rank=2),
        Column("label", "label", lambda r: r.guess.label, is_number=False, rank=0),
        Column("score", "score", lambda r: r.guess.score, lambda r: numbers.percent(r.guess.score), rank=0),
        Column("on", "on", lambda r: r.is_on, lambda r: "on" if r.is_on else "", False, 0, has_threshold),
        Column("logit", "logit", lambda r: r.guess.logit, lambda r: numbers.number(r.guess.logit), rank=1),
    )


def _image(row: _Row) -> str:
    return row.image if row.rank == 1 else ""


def predict_sheet(record: PredictRecord, columns: str | None = None) -> Sheet:
    """Lay out the guesses, image by image, likeliest first."""
    threshold = record.threshold
    return Sheet(
        title=_title(record),
        columns=choose_columns(predict_columns(threshold is not None), columns),
        rows=tuple(
            _Row(prediction.image, rank, guess, None if threshold is None else guess.score >= threshold)
            for prediction in record.predictions
            for rank, guess in enumerate(prediction.top, 1)
        ),
        facts=tuple(_facts(record)),
        is_dim=lambda row: row.rank > 1 if row.is_on is None else not row.is_on,
    )


def _title(record: PredictRecord) -> str:
    model, n = record.run.model, len(record.predictions)
    what = f"{n} image" + ("s" if n != 1 else "")
    return (
        f"{model.name} ({model.class_name}, weights {model.weights.resolved}) on {what}, {record.run.device}"
    )


def _facts(record: PredictRecord) -> list[tuple[str, str]]:
    words = f"softmax: one of {record.classes} classes an image, all scores add up to 1"
    if record.threshold is not None:
        words = (
            f"sigmoid: each of {record.classes} classes on its own, on from a score of {record.threshold:g}"
        )
    facts = [("score", words)]
    if record.temperature != 1:
        facts.append(("temperature", f"logits divided by {record.temperature:g} before that"))
    return [*facts, *hook_facts(record.hooks)]
