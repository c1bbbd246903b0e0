"""The columns of `featuremaps`."""

from modelscope_cli.records.featuremaps import FeatureMap, FeatureMapsRecord
from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.report.numbers import hook_facts, not_called_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns

_COLUMNS = (
    Column("name", "layer", label_of, is_number=False, rank=0),
    *field_columns(FeatureMap, "type shape channels"),
    Column("shown", "shown", lambda r: len(r.shown), lambda r: f"{len(r.shown)} of {r.channels}", rank=2),
    *field_columns(FeatureMap, "min max"),
    *field_columns(FeatureMap, "file", text=lambda r: r.file or r.problem or ""),
)


def featuremaps_columns(has_notes: bool) -> tuple[Column, ...]:
    """Return all columns of `featuremaps`; the notes are hidden in the terminal if there are none."""
    traits = {"is_shown": has_notes, "is_bad": lambda row: row.non_finite > 0}
    return (*_COLUMNS, *field_columns(FeatureMap, "note", **traits))


def featuremaps_sheet(record: FeatureMapsRecord) -> Sheet:
    """Return the written images in execution order."""
    facts = [*hook_facts(record.hooks), *not_called_facts(record.not_called)]
    notes = {row.note for row in record.maps}
    is_shared = len(notes) == 1 < len(record.maps) and not record.maps[0].non_finite
    facts += [("drawn", note) for note in notes if note and is_shared]
    return Sheet(
        title=_title(record),
        columns=featuremaps_columns(any(notes) and not is_shared),
        rows=record.maps,
        facts=tuple(facts),
        is_dim=lambda row: not row.shown,
        is_bad=lambda row: row.non_finite > 0,
        alike=lambda row: (row.name, row.output, row.shape),
        is_by_layer=True,
    )


def answer(record: FeatureMapsRecord) -> str:
    """Return how many layers and channels are drawn, and what is not."""
    drawn = [row for row in record.maps if row.shown]
    lost = len(record.maps) - len(drawn)
    shown, channels = sum(len(row.shown) for row in drawn), sum(row.channels for row in drawn)
    noun = "filter" if any(row.kind == "filters" for row in drawn) else "channel"
    words = f"{counted(len(drawn), 'layer')}: {shown:,} of {counted(channels, noun)} drawn"
    lows = [row.min for row in drawn if row.min is not None]
    highs = [row.max for row in drawn if row.max is not None]
    span = f", values {min(lows):.4g} to {max(highs):.4g}" if lows and highs else ""
    broken = [f"; NaN or infinite values from {label_of(row)} on" for row in record.maps if row.non_finite]
    return f"{words}{span}{''.join(broken[:1])}" + (f"; {counted(lost, 'layer')} not drawn" if lost else "")


def _title(record: FeatureMapsRecord) -> str:
    input_info = record.run.input
    source = (", ".join(input_info.files) or input_info.source) if input_info else ""
    if any(row.kind == "filters" for row in record.maps):
        return f"{record.run.model.described}: filters"
    return f"{record.run.model.described} on {source}, {record.run.device}"
