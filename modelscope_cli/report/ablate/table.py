"""The columns of `ablate`."""

import math
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from modelscope_cli.records.ablate import AblateRecord, Ablation
from modelscope_cli.records.naming import counted, label_of, some
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts, not_called_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns, percentage

_STAND_INS = {
    "zero": "zeros",
    "mean": "the mean of each channel over its positions (over all channels if each has one value)",
    "shuffle": "the layer's own values at shuffled positions, in the same order for all channels, by --seed",
}
# Headings where the score is not a logit, and where no single prediction can change
_SCORES = tuple(f"Δ {name}" for name in ("mean logit", "value", "mean value", "cosine similarity", "score"))
_CHANGED = "pixels changed", "classes changed"
_HOW = {"zero": "set to zero", "mean": "set to its mean", "shuffle": "shuffled"}


def ablate_columns(record: AblateRecord | None = None) -> tuple[Column, ...]:
    """Return all columns; with a record, empty ones are hidden in the terminal."""
    has_channels = record is None or any(row.channel is not None for row in record.rows)
    is_of_several = record is not None and record.images > 1
    has_several = record is None or is_of_several or record.is_independent or record.output == "pixels"
    is_of_pixels = record is not None and record.output == "pixels"
    what = "pixels " if is_of_pixels else "classes " if record is not None and record.is_independent else ""
    answer_title = "always" if is_of_several else "answer"
    has_probability = record is None or record.baseline.target_probability is not None
    score_name = record.score_name if record is not None else "logit"
    return (
        Column("name", "layer", label_of, is_number=False, rank=0),
        *field_columns(Ablation, "channel", is_shown=has_channels),
        *field_columns(Ablation, "type"),
        *field_columns(Ablation, "kl", missing="NaN"),
        *field_columns(Ablation, "logit_change", missing="NaN", title=f"Δ {score_name}", also=_SCORES),
        *field_columns(Ablation, "probability", missing="NaN", is_shown=has_probability),
        *field_columns(Ablation, "l2", missing="NaN"),
        *field_columns(
            Ablation, "changed", missing="NaN", is_shown=has_several, title=f"{what}changed", also=_CHANGED
        ),
        percentage("accuracy", "accuracy", lambda r: r.accuracy and r.accuracy.value, rank=0),
        *field_columns(Ablation, "accuracy_drop"),
        Column("answer", answer_title, answer_of, is_number=False, rank=0, also=("always",)),
        *field_columns(Ablation, "order"),
    )


def answer_of(row: Ablation) -> str:
    """Return the prediction after an ablation if it is that of all images; else an empty string."""
    answer = "all scores equal" if row.answer_index is None else row.answer_label or str(row.answer_index)
    return answer if row.answer_fraction == 1 else ""


def ablate_sheet(record: AblateRecord) -> Sheet:
    """Return the ablations, the largest effect first."""
    return Sheet(
        title=headline(record.run, record.images),
        columns=ablate_columns(record),
        rows=record.rows,
        facts=_facts(record),
        definitions=("stand-in", "columns"),
        is_bad=lambda row: row.prediction_changed or row.output_l2 is None,
    )


def answer(record: AblateRecord) -> str:
    """Return how many ablations change the prediction, and which changes the output most."""
    rows = record.rows
    if not rows:
        return "No layer was ablated"
    kind = "channel" if any(row.channel is not None for row in rows) else "layer"
    n, winners = sum(row.prediction_changed for row in rows), _winners(rows)
    most, constant = rows[0], sum(row.is_constant for row in rows)
    names = [label_of(row) + (f"[{row.channel}]" if row.channel is not None else "") for row in winners]
    effect = f"{some(names, 3)} {'has' if len(names) == 1 else 'share'} the largest effect"
    if 1 < len(rows) == len(winners):
        effect = "all change the output equally, so none matters more"
    elif most.is_constant and constant > 1:
        effect = f"{constant} of {len(rows)} leave one output for all images, so their order tells nothing"
    elif record.unranked > len(winners):
        effect = f"the largest {record.unranked} cannot be ranked: they differ by less than the images do"
    broken = sum(row.output_l2 is None for row in rows)
    nan = f"; {broken} of {len(rows)} give NaN or infinity" if broken else ""
    prediction = "the prediction" if record.images < 2 else "a prediction"
    changes = f"{n} of {counted(len(rows), kind)} {'changes' if n == 1 else 'change'} {prediction}"
    return f"{changes} when {_HOW[record.mode]}; {effect}{nan}"


def _winners(rows: Sequence[Ablation]) -> list[Ablation]:
    """Return the ablations with the largest effect: often of a layer and the norm and activation after it."""
    is_close = partial(math.isclose, rel_tol=1e-6, abs_tol=1e-9)
    read = attrgetter("output_l2", "kl_divergence", "target_logit_change")
    effects = [[one or 0.0 for one in read(row)] for row in rows]
    return [row for row, one in zip(rows, effects, strict=True) if all(map(is_close, one, effects[0]))]


def _facts(record: AblateRecord) -> tuple[tuple[str, str], ...]:
    logit, share = record.baseline.target_logit, numbers.percent(record.baseline.target_probability)
    target = f"{record.baseline.target}, {record.score_name} {numbers.number(logit)}"
    target += f", probability {share}" * bool(share)
    facts = [("target", target), ("replaced by", _STAND_INS[record.mode])]
    if record.baseline.accuracy is not None:
        words = numbers.accuracy_words(record.baseline.accuracy, record.images)
        if record.baseline.accuracy.low * record.classes <= 1:
            words += f"; not above chance for {record.classes} classes, so a drop says little"
        facts.append(("whole model", f"accuracy {words}"))
    facts += [("answer", answer(record)), ("columns", _column_words(record))]
    facts += hook_facts(record.hooks)
    facts += not_called_facts(record.not_called)
    return tuple(facts)


def _column_words(record: AblateRecord) -> str:
    is_of_pixels = record.output == "pixels"
    of_all, unit = ("output values", ", mean over the pixels") if is_of_pixels else ("logits", "")
    kl = f"KL: divergence of the probabilities from those of the whole model, in nats{unit}"
    change = f"Δ {record.score_name}: change of the target's {record.score_name}"
    return f"{kl}; {change}; L2: norm of the change of all {of_all}; sorted by KL"


def picture_title(record: AblateRecord) -> str:
    """Return the two lines of a title: the model, and the ablation with its target."""
    what = "each channel" if any(row.channel is not None for row in record.rows) else "each layer"
    return f"{record.run.model.heading}\n{what} in turn {_HOW[record.mode]}; target {record.baseline.target}"
