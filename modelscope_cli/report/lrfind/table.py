"""The columns of `lrfind`: the suggestions."""

from dataclasses import dataclass

from modelscope_cli.records.train import LrfindRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, figure

WAYS = {
    "steepest": "where the loss falls fastest over log lr",
    "valley": "middle of the longest descent: recommended",
    "minimum": "a tenth of the rate with the lowest loss",
}


@dataclass(frozen=True, slots=True)
class SuggestionRow:
    """One suggestion; None if the loss never fell."""

    name: str
    lr: float | None
    loss: float | None
    meaning: str


COLUMNS = (
    Column("suggestion", "suggestion", lambda r: r.name, is_number=False, rank=0),
    Column("lr", "lr", lambda r: r.lr, lambda r: rate(r.lr) if r.lr is not None else "none", rank=0),
    figure("loss", "loss", lambda r: r.loss, rank=1),
    Column("meaning", "meaning", lambda r: r.meaning, is_number=False, rank=2, wraps=True),
)


def lrfind_sheet(record: LrfindRecord) -> Sheet:
    """Return the suggestions; the facts below are about the sweep."""
    rows = []
    for name, meaning in WAYS.items():
        lr = getattr(record.suggestion, name)
        rows.append(SuggestionRow(name, lr, loss_at(record, lr), meaning))
    return Sheet(
        title=f"{record.run.model.described} on {record.data}, {record.optimizer}, {record.run.device}",
        columns=COLUMNS,
        rows=tuple(rows),
        facts=tuple(_facts(record)),
        is_dim=lambda row: row.lr is None,
    )


def answer(record: LrfindRecord) -> str:
    """Return the recommended learning rate."""
    lr = record.suggestion.recommended
    if lr is None:
        return f"No learning rate to suggest: {_why_none(record)}"
    span = f"{record.lr[0]:.3g} to {record.lr[-1]:.3g}"
    return f"Learning rate {rate(lr)}: the middle of the longest fall of the loss; {span} were tried"


def _why_none(record: LrfindRecord) -> str:
    if not record.fall:
        return "the loss never fell after the first tenth of the sweep and before its last five steps"
    fall, noise = numbers.number(record.fall), numbers.number(record.noise)
    return f"the curve is flat: the smoothed loss falls by {fall}, and noise alone by up to {noise}"


def rate(lr: float) -> str:
    """Format a learning rate as one would type it."""
    return f"{lr:.3g}"


def loss_at(record: LrfindRecord, lr: float | None) -> float | None:
    """Return the smoothed loss of the step whose rate is nearest to `lr` on a log scale."""
    if lr is None:
        return None
    nearest = min(
        zip(record.lr, record.smoothed, strict=True), key=lambda pair: max(pair[0] / lr, lr / pair[0])
    )
    return nearest[1]


def _facts(record: LrfindRecord) -> list[tuple[str, str]]:
    facts = [("swept", f"{record.lr[0]:.3g} to {record.lr[-1]:.3g} in {len(record.lr)} steps")]
    facts.append(("stopped", record.stopped))
    losses = [value for value in record.smoothed if value is not None]
    if losses:
        facts.append(("loss", f"{numbers.number(losses[0])}, lowest {numbers.number(min(losses))}"))
    if record.suggestion.valley is None:
        facts.append(
            (
                "no suggestion",
                f"{_why_none(record)}: try more --steps, a larger --batch, other rates (--from 1e-8), or look at "
                "the data",
            )
        )
    return facts
