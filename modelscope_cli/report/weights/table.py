"""The columns of `weights`, flat or as a tree of sums."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from modelscope_cli.plain_text import plain
from modelscope_cli.records.identified import Identified
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.weights import ScanRecord, TensorRow, WeightsRecord, oddity
from modelscope_cli.report import numbers
from modelscope_cli.report.shared_tables import ranks_of, scan_sheet, weights_only
from modelscope_cli.report.sheet import Column, Layout, Sheet, field_columns, size

STATISTICS = ("mean", "std", "min", "max", "abs_max", "zero", "nan", "inf")


@dataclass(frozen=True, slots=True)
class Branch:
    """All tensors below one prefix, or a single tensor."""

    name: str
    depth: int
    tensors: tuple[TensorRow, ...]

    @property
    def own(self) -> tuple[TensorRow, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.shared_with is None)

    @property
    def label(self) -> str:
        return "  " * self.depth + (self.name.rpartition(".")[2] if self.depth else self.name)


_TREE: tuple[Column, ...] = (
    Column("name", "name", lambda r: r.name, lambda r: r.label, is_number=False, rank=0),
    Column("tensors", "tensors", lambda r: len(r.own), rank=0),
    Column("dtype", "dtype", lambda r: " ".join(dict.fromkeys(t.dtype for t in r.tensors)), is_number=False),
    Column(
        "numel",
        "numel",
        lambda r: sum(t.numel for t in r.own),
        lambda r: numbers.count(sum(t.numel for t in r.own)),
        rank=0,
    ),
    size("bytes", "size", lambda r: sum(t.bytes for t in r.own), rank=0),
)


def _flat(with_files: bool, with_stats: bool, with_problems: bool, with_broken: bool) -> tuple[Column, ...]:
    return (
        *field_columns(TensorRow, "name shape dtype numel"),
        *field_columns(TensorRow, "bytes", text=lambda r: f"= {r.shared_with}" if r.shared_with else ""),
        *field_columns(TensorRow, "mean std min max abs_max zero", is_shown=with_stats),
        *field_columns(TensorRow, "nan inf", is_shown=with_broken),
        *field_columns(TensorRow, "shared"),
        *field_columns(TensorRow, "problem", is_shown=with_problems),
        *field_columns(TensorRow, "file", text=lambda r: PurePath(r.file).name, is_shown=with_files),
    )


EVERY_COLUMN = (*_flat(True, True, True, True), *_TREE)  # of all tables except `--scan`


def weights_sheet(record: WeightsRecord | ScanRecord, depth: int | None = None) -> Sheet:
    """Return the tensors, or with `depth` the sums of prefixes of that many parts; for a scan, the files."""
    if isinstance(record, ScanRecord):
        return scan_sheet(record)
    rows: Sequence[Branch | TensorRow]
    if depth is not None:
        rows, all_columns = branches(record.tensors, depth), _TREE
    else:
        rows = record.tensors
        with_files, with_problems = len({row.file for row in rows}) > 1, any(row.problem for row in rows)
        with_broken = any(row.nan_count or row.inf_count for row in rows)
        all_columns = _flat(with_files, record.has_stats, with_problems, with_broken)
    return Sheet(
        title=f"{record.source} ({record.format}): {_holds(record)}",
        columns=all_columns,
        rows=tuple(rows),
        facts=_facts(record),
        is_by_layer=True,
        most_rows=20,
        is_tree=depth is not None,
        is_dim=lambda row: isinstance(row, TensorRow) and row.shared_with is not None,
        is_bad=lambda row: isinstance(row, TensorRow) and bool(oddity(row)),
    )


def answer(record: WeightsRecord | ScanRecord) -> str:
    """Return what a file holds and what is wrong with it; for a scan, the ranks of the files."""
    if isinstance(record, ScanRecord):
        return f"{counted(len(record.files), 'file')} scanned: {ranks_of(record)}"
    text = _holds(record)
    if record.safety and (dangerous := record.safety.dangerous):
        loader = dangerous[0].loader
        names = [one.name for one in dangerous if one.loader == loader]
        text = f"dangerous: {loader} would run {some(names, 2)}; {text}"
    return text[:1].upper() + text[1:]


def _holds(record: WeightsRecord) -> str:
    """Return the architecture of a file, its size and precision, and its suspicious values."""
    totals, words = record.totals, []
    if record.architecture.candidates:
        words.append(f"fits {architecture(record.architecture)}")
    values = f"{totals.numel:,} values in {counted(totals.tensors, 'tensor')}"
    words.append(f"{values}, {numbers.memory(totals.bytes)} of {', '.join(totals.by_dtype)}")
    if record.has_stats:
        broken = sum(bool(oddity(row)) for row in record.tensors)
        unread = sum(row.nan_count is None for row in record.tensors if row.shared_with is None)
        if broken:
            words.append(f"{counted(broken, 'tensor')} with broken values")
        elif unread < totals.tensors:
            words.append("no NaN, no infinity")
        words += [f"{unread} of {counted(totals.tensors, 'tensor')} not checked"] if unread else []
        zero = [row.name for row in record.tensors if row.zero_fraction == 1 and len(row.shape) > 1]
        words += [f"all zero: {some(zero, 2)}"] if zero else []
    return "; ".join(words)


def check_columns(layout: Layout, depth: int | None) -> bool:
    """Refuse unknown columns before anything is read; return whether they need the values."""
    chosen = layout.check(_TREE if depth is not None else _flat(True, True, True, True))
    is_asked = layout.columns is not None or layout.sort is not None
    return is_asked and any(column.key in STATISTICS for column in chosen)


def branches(tensors: Sequence[TensorRow], depth: int) -> list[Branch]:
    """Group tensors by prefixes of up to `depth` parts, in file order."""
    groups: dict[str, list[TensorRow]] = {}
    for tensor in tensors:
        words = tensor.name.split(".")
        for n in range(1, min(depth, len(words)) + 1):
            groups.setdefault(".".join(words[:n]), []).append(tensor)
    return [Branch(name, name.count("."), tuple(below)) for name, below in groups.items()]


def _facts(record: WeightsRecord) -> tuple[tuple[str, str], ...]:
    totals = record.totals
    parts = [
        f"{numbers.memory(total.bytes)} {dtype} ({total.tensors})" for dtype, total in totals.by_dtype.items()
    ]
    facts = [("size", ", ".join(parts))] if len(parts) > 1 else []
    if totals.storage_bytes > totals.bytes:
        extra = numbers.memory(totals.storage_bytes)
        facts.append(("stored", f"{extra}: some tensors are parts of larger ones"))
    facts.append(("architecture", architecture(record.architecture)))
    if record.saved_class:
        facts.append(("saved whole", f"a model of the class {record.saved_class}"))
    if record.architecture.is_headless or (record.architecture.score == 1 and record.architecture.unexpected):
        loads = record.architecture.loads(record.source, record.note)
        facts.append(("loaded by", f"modelscope summary {loads}"))
    if head := record.architecture.head_in({row.name: row.shape for row in record.tensors}):
        facts.append(("head", head))
    if not record.has_stats:
        facts.append(("values", "not read, so not checked for NaN or damage; --stats reads them"))
    if odd := [f"{row.name}: {words}" for row in record.tensors if (words := oddity(row))]:
        facts.append(("values", some(odd, 8)))
    if record.note:
        facts.append(("state dict", record.note))
    dangerous = {one.name for one in record.safety.dangerous} if record.safety else set()
    if beside := [f"{key}: {text}" for key, text in record.beside.items() if text not in dangerous]:
        facts.append(("also in it", some(beside, 8)))
    if record.metadata:
        facts.append(("metadata", some([f"{k}={_cut(v)}" for k, v in record.metadata.items()], 8)))
    if record.safety:
        verdict = record.safety.weights_only
        facts.append(("weights only", weights_only(replace(verdict, reason=None) if dangerous else verdict)))
    return tuple(facts)


def architecture(identified: Identified) -> str:
    """Return the architecture, or why it is unknown."""
    classes = f", {identified.num_classes} classes" if identified.num_classes else ""
    prefix = f", with the prefix '{identified.prefix}'" if identified.prefix else ""
    if identified.candidates:
        return " or ".join(identified.candidates) + classes + prefix
    none = "unknown: not that of a torchvision or timm model"
    if not identified.nearest or identified.score < 0.5:
        return none
    if identified.is_headless:
        return f"nearly that of {identified.words()}"
    return f"{none}; nearest is {identified.words()} ({numbers.percent(identified.score)} fit)"


def _cut(text: str) -> str:
    text = plain(text)
    return text if len(text) <= 60 else text[:59] + "…"
