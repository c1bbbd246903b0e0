"""The safety of checkpoints, as `weights`, `check` and others show it."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from modelscope_cli.paths import in_repository
from modelscope_cli.records.findings import RuleText
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.weights import (
    CALL,
    DAMAGED,
    DANGEROUS,
    KNOWN,
    NOT_A_CHECKPOINT,
    OTHER,
    RANKS,
    UNKNOWN,
    Safety,
    ScanRecord,
    Suspect,
    WeightsOnly,
)
from modelscope_cli.report.ci import Problem, Review
from modelscope_cli.report.sheet import Column, Sheet, field_columns

_N_UNKNOWN = 8
_LOADS = {
    "yes": "torch.load(weights_only=True) accepts it",
    "with names": "torch.load(weights_only=True) accepts it once these names are allowed",
    "no": "torch.load(weights_only=True) rejects it",
    "unasked": "contains no pickle that torch.load would read",
}


def weights_only(verdict: WeightsOnly) -> str:
    """Return whether torch loads a file with `weights_only=True`."""
    if verdict.loads == "with names":
        return f"{_LOADS[verdict.loads]}: {some(verdict.names, _N_UNKNOWN)}"
    return _LOADS[verdict.loads] + (f": {verdict.reason}" if verdict.reason else "")


def _found(safety: Safety) -> str:
    """Return what loading would run or import, and what could not be read."""
    runs = [one.call or one.name for one in (*safety.dangerous, *safety.calls)]
    imports = [one.name for one in safety.objects]
    errors = some(safety.errors, 1).removeprefix(f"{NOT_A_CHECKPOINT}: ") if safety.errors else ""
    texts = (f"runs {some(runs, 3)}" * bool(runs), f"imports {some(imports, 3)}" * bool(imports))
    code = "a TorchScript program, whose code was not looked at" * safety.is_script
    return "; ".join(filter(None, (*texts, code, errors)))


def _unasked(safety: Safety) -> str:
    """Return why torch.load unpickles nothing of a file, for `--scan`."""
    if safety.errors and safety.rank != NOT_A_CHECKPOINT:
        return "not judged"
    return "not read" if safety.pickles else "no pickle"


SCAN_COLUMNS: tuple[Column, ...] = (
    *field_columns(Safety, "file", wraps=True),
    *field_columns(Safety, "rank"),
    Column(
        "dangerous",
        "dangerous",
        lambda r: " ".join(suspect.call or suspect.name for suspect in r.dangerous),
        is_number=False,
        is_shown=False,
    ),
    Column(
        "unknown",
        "unknown",
        lambda r: " ".join((one.is_call and one.call) or one.name for one in r.unknown),
        is_number=False,
        is_shown=False,
    ),
    Column(
        "weights_only",
        "weights only",
        lambda r: r.weights_only.loads,
        lambda r: _unasked(r) if r.weights_only.loads == "unasked" else r.weights_only.loads,
        is_number=False,
        rank=1,
    ),
    Column("pickles", "pickles", lambda r: len(r.pickles), rank=5),
    Column(
        "problem",
        "problem",
        lambda r: "; ".join(r.errors) or None,
        _found,
        is_number=False,
        rank=0,
        wraps=True,
    ),
)


def scan_sheet(record: ScanRecord) -> Sheet:
    """Return the files of a scan, the worst first."""
    return Sheet(
        title=f"{record.source}",
        columns=SCAN_COLUMNS,
        rows=tuple(sorted(record.files, key=lambda file: -RANKS.index(file.rank))),
        facts=(("files", f"{len(record.files)}: {ranks_of(record)}"),) if record.files else (),
        is_dim=lambda file: file.rank in (OTHER, KNOWN),
        is_bad=lambda file: file.fails(CALL),
    )


def ranks_of(record: ScanRecord) -> str:
    n = Counter(file.rank for file in record.files)
    counts = [f"{n[rank]} {rank}" for rank in (DANGEROUS, DAMAGED, UNKNOWN, NOT_A_CHECKPOINT) if n[rank]]
    counts += [f"{n[KNOWN]} without unknown code"] * bool(n[KNOWN])
    return ", ".join([*counts, *[f"{counted(n[OTHER], OTHER)} without a pickle"] * bool(n[OTHER])])


def about_file(hint: str, file: str) -> str:
    """Return the hint of a rule with the name of the checkpoint in the place of FILE."""
    converted = shlex.quote(str(Path(file).with_suffix(".safetensors")))
    return hint.replace("FILE.safetensors", converted).replace("FILE", shlex.quote(file))


def review_files(source: str, files: Sequence[Safety], rules: Sequence[RuleText], fail_on: str) -> Review:
    """Return what loading files could run, for a CI host: an error for each dangerous name, a warning for each
    unknown one.

    Args:
        rules: MS001 and MS002.
        fail_on: as in `Safety.fails`.
    """
    dangerous, unknown = rules

    def problem(file: Safety, suspect: Suspect) -> Problem:
        rule = dangerous if suspect.rank == DANGEROUS else unknown
        what = suspect.call or suspect.name
        message = (
            f"{suspect.loader} would run {what}, which {suspect.reason}"
            if rule is dangerous
            else f"{suspect.loader} would {'call' if suspect.is_call else 'import'} {what}, which is unknown"
        )
        where = f"{suspect.name} ({suspect.place})"
        path, hint = in_repository(file.file) or file.file, about_file(rule.hint, file.file)
        return Problem(rule.code, rule.name, rule.severity, where, message, hint, path)

    n_failed = sum(file.fails(fail_on) for file in files)
    not_read = {file.file: "; ".join(file.errors) for file in files if file.errors}
    unread = [f"{file}: {text}" for file, text in not_read.items()]
    n, n_unread = counted(len(files), "file"), len(unread)
    clean = f"nothing found in {len(files) - n_unread} of {n} (code only; values are not judged)"
    outcome = f"{n_failed} of {n} failed" if n_failed else clean
    return Review(
        command="weights",
        subject=source,
        rules=tuple(rules),
        problems=tuple(problem(file, suspect) for file in files for suspect in file.suspects),
        outcome=outcome + (f"; {n_unread} not judged" if unread else ""),
        not_judged=tuple(unread) if n_failed else (),
        not_judged_title=f"not judged: {n_unread} of {n}",
        not_read=not_read,
        failure="" if n_failed or not unread else f"not judged: {'; '.join(unread)}",
    )
