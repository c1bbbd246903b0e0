"""The columns of `lrfind`: the suggestions."""

from modelscope_cli.records.train import ZERO_GRADIENT, LrfindRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, figure

WAYS = {
    "steepest": "where the loss falls fastest over log lr",
    "valley": "halfway down the fall of the loss, lower if steep (recommended)",
    "minimum": "a tenth of the rate with the lowest loss",
}


# Of (name, rate, smoothed loss there)
COLUMNS = (
    Column("suggestion", "suggestion", lambda r: r[0], is_number=False, rank=0),
    Column("lr", "lr", lambda r: r[1], lambda r: rate(r[1]), rank=0),
    figure("loss", "loss", lambda r: r[2], rank=1),
    Column("meaning", "meaning", lambda r: WAYS[r[0]], is_number=False, rank=2, wraps=True),
)

_NONE = "No learning rate to suggest: {}; try a wider range (--from, --to), or look at the data"
_HALFWAY = 0.6  # share of the fall that is left; at a third of the rate where a quarter is, it may be all
_SLIGHT = 0.05  # of the loss at first: a fall that says little


def lrfind_sheet(record: LrfindRecord) -> Sheet:
    """Return the suggestions; the facts below are about the sweep."""
    rates = [(name, getattr(record.suggestion, name)) for name in WAYS]
    return Sheet(
        title=f"{record.run.model.described} on {record.data}, {record.optimizer}, {record.run.device}",
        columns=COLUMNS,
        rows=tuple((name, lr, loss_at(record, lr)) for name, lr in rates if lr is not None),
        facts=(*_facts(record), ("answer", answer(record))),
    )


def answer(record: LrfindRecord) -> str:
    """Return the recommended learning rate."""
    lr = record.suggestion.recommended
    if record.stopped == ZERO_GRADIENT:
        return _NONE.format(ZERO_GRADIENT)
    if lr is None:
        # Fewer than about 230 steps of the usual range
        is_coarse = record.lr[:2][-1] > 1.06 * record.lr[0]
        words = "Cannot suggest a learning rate: {}; try --steps 300" if is_coarse else _NONE
        return words.format(_why_none(record))
    lowest = min((loss for loss in record.smoothed[:-5] if loss is not None), default=0.0)
    is_halfway = (loss_at(record, lr) or 0.0) - lowest < _HALFWAY * record.fall
    where = "the loss has fallen about halfway there" if is_halfway else "just before the loss falls steeply"
    words = f"Learning rate {rate(lr)}: {where}"
    first = next((value for value in record.smoothed if value), None)
    if first and record.fall < _SLIGHT * first:
        words += f"; it fell by only {numbers.percent(record.fall / first)}: use more --steps to be sure"
    return words


def _why_none(record: LrfindRecord) -> str:
    if not record.fall:
        return "the loss never fell between the first tenth of the sweep and its last five steps"
    fall, noise = numbers.number(record.fall), numbers.number(record.noise)
    return f"the smoothed loss fell by {fall}, which is within its noise ({noise})"


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
    swept = f"{record.lr[0]:.3g} to {record.lr[-1]:.3g} in {len(record.lr)} steps"
    facts = [("swept", swept), ("stopped", record.stopped)]
    losses = [value for value in record.smoothed if value is not None]
    if losses:
        lowest = f"{numbers.number(losses[0])}, lowest {numbers.number(min(losses))}"
        facts.append(("loss", f"{lowest}, measured on training batches, so memorising also lowers it"))
    return facts
