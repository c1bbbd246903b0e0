"""The columns of `verify`."""

from modelscope_cli.records.certificate import VerifiedBlock, VerifyRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Sheet, field_columns

COLUMNS = (
    *field_columns(VerifiedBlock, "phase block images"),
    *field_columns(VerifiedBlock, "equal", text=lambda row: "equal" if row.is_equal else "differ"),
    *field_columns(VerifiedBlock, "gap", text=lambda r: numbers.number(r.gap), missing="not comparable"),
    *field_columns(VerifiedBlock, "passed", text=lambda row: "yes" if row.passed else "no"),
)


def verify_sheet(record: VerifyRecord) -> Sheet:
    """Return the recomputed blocks, one row per block and phase."""
    return Sheet(
        title=f"{record.result} ({record.of})",
        columns=COLUMNS,
        rows=record.blocks,
        facts=_facts(record),
        is_bad=lambda row: not row.passed,
    )


def answer(record: VerifyRecord) -> str:
    """Return how many of the recomputed blocks are as stored."""
    n = sum(block.passed for block in record.blocks)
    result = "Passed" if record.passed else "Not passed"
    return (
        f"{result}: {n} of {counted(len(record.blocks), 'block')} of {record.of} computed again are the same"
    )


def _facts(record: VerifyRecord) -> tuple[tuple[str, str], ...]:
    wrong = [block for block in record.blocks if not block.passed]
    n_here = sum(block.is_same_machine for block in record.blocks)
    how = [f"bit for bit ({n_here})"] * bool(n_here)
    how += [f"to {record.tolerance:g}, made on another kind of machine ({len(record.blocks) - n_here})"] * (
        n_here < len(record.blocks)
    )
    failed = f"{counted(len(wrong), 'block')} of {len(record.blocks)} differ from those in the folder"
    verdict = "passed" if record.passed else failed if wrong else "not passed"
    return (
        ("result", verdict),
        ("compared", ", ".join(how)),
        ("machine", record.machine.words),
        *(("not the same", difference) for difference in record.differences),
        ("certificate", record.certificate.words),
    )
