"""`modelscope verify`."""

import modelscope_cli as ms
from modelscope_cli.records.certificate import VerifiedBlock, VerifyRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Sheet, field_columns
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

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


NOT_PASSED = 1

PLACE = 43  # in `modelscope --help`


@command
def verify(call: CommandCall) -> int:
    """Recompute a random sample of a stored result, and exit with 1 if it differs.

    For results that --out stored in blocks: stats, predict, explain and check over many images. Run it in the same
    folder as the command, so that it finds the model and the images. On the same kind of machine all bits have to
    be equal; otherwise numbers may differ by 0.1 %. The totals of the report have to match its blocks.

    Examples:

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --batch 8
        --out activations

      modelscope verify activations --sample 20

      modelscope verify activations/report.json --json
    """

    where = call.begin()
    where.view.check(COLUMNS)
    record = ms.verify(call["result"], **call.keywords())
    emit(where, verify_sheet(record), record)
    return 0 if record.passed else NOT_PASSED
