"""The columns of `predict --doctor`: one row a way to prepare the images, the most harmful first."""

from modelscope_cli.records.doctor import DoctorRecord, Evidence, Variation
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.headline import headline
from modelscope_cli.report.sheet import Column, Sheet, figure, percentage


def doctor_columns(images: int = 0, has_accuracy: bool = True, has_misfit: bool = True) -> tuple[Column, ...]:
    """All columns; the last two are for images in folders of their class, and for models with batch norm."""
    return (
        Column("variation", "prepared", lambda r: r.name, is_number=False, rank=0),
        Column("kind", "kind", lambda r: r.kind, is_number=False, is_shown=False),
        Column("what", "what it does", _what, is_number=False, rank=4, wraps=True),
        Column("affected", "affected", lambda r: r.affected, is_shown=False),
        Column("changed", "changed", lambda r: r.changed, lambda r: f"{r.changed} of {images}", rank=0),
        percentage("probability_change", "mean |change|", lambda r: r.probability_change, rank=1),
        figure("kl_divergence", "KL (nats)", lambda r: r.kl_divergence, rank=2),
        percentage("top_probability", "mean top", lambda r: r.top_probability, rank=2),
        Column("predicted_classes", "classes", lambda r: r.predicted_classes, rank=3),
        figure("misfit", "misfit", lambda r: r.misfit, rank=2, is_shown=has_misfit),
        percentage("accuracy", "accuracy", lambda r: r.accuracy, rank=0, is_shown=has_accuracy),
    )


def doctor_sheet(record: DoctorRecord) -> Sheet:
    """Lay out the variations, the most harmful first."""
    rows = record.variations
    known = doctor_columns(
        record.images,
        any(row.accuracy is not None for row in rows),
        any(row.misfit is not None for row in rows),
    )
    return Sheet(
        title=headline(record.run, record.images),
        columns=known,
        rows=rows,
        facts=tuple(_facts(record)),
        is_dim=lambda row: not row.affected,
        is_bad=lambda row: row.changed > 0,
    )


def _what(row: Variation) -> str:
    if row.kind == "meant":
        return "see below"
    return row.what if row.affected else f"{row.what}: these images stay the same"


def _facts(record: DoctorRecord) -> list[tuple[str, str]]:
    meant = record.variations[-1]
    facts = [("as meant", record.meant)]
    if record.stated_by is not None:
        facts.append(("stated by", record.stated_by))
    else:
        facts.append(("stated by", f"nobody, so 'as meant' is a guess: {record.assumed}"))
    if record.given is not None:
        given = next(row for row in record.variations if row.kind == "given")
        text = f"{record.given}: not what the weights state; {_damage(given, record.images)}"
        facts.append(("as given", text))
    facts += [_told(one) for one in record.evidence]
    if record.stated_by is None:
        facts.append(("most sure", _most_sure(record, meant)))
    if record.left_out is not None:
        facts.append(("left out", record.left_out))
    return facts


def _told(one: Evidence) -> tuple[str, str]:
    if one.kind == "accuracy":
        share, as_meant = numbers.percent(one.value), numbers.percent(one.as_meant)
        return (
            one.kind,
            f"'{one.name}' gets {share} of the images right by their folders, as stated {as_meant}",
        )
    gap = f"a misfit of {numbers.number(one.value)} nats, {numbers.number(one.as_meant)} as meant"
    return one.kind, f"the running statistics of the training speak for '{one.name}': {gap}"


def _damage(row: Variation, images: int) -> str:
    return f"{row.changed} of {counted(images, 'prediction')} change" + ("s" if row.changed == 1 else "")


def _most_sure(record: DoctorRecord, meant: Variation) -> str:
    best = max(record.variations, key=lambda row: (row.top_probability > 0, row.top_probability))  # or is NaN
    text = f"'{best.name}', {numbers.percent(best.top_probability)} on average"
    if best is not meant:
        text += f", and {numbers.percent(meant.top_probability)} as meant"
    return (
        f"{text}. That is a hint, not a proof: a wrong scale makes large logits, and large logits make any model "
        "confident. Images in folders named after their classes show the accuracy instead"
    )
