"""`modelscope verify`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.records.bounds import LAST_SEED
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import emit

NOT_PASSED = 1


@spread
def verify(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="The folder that --out named, or the report.json in it.")
    ],
    sample: Annotated[
        int, whole("--sample", min=1, metavar="N", help="How many blocks to compute again.")
    ] = 8,
    seed: Annotated[
        int, whole("--seed", most=LAST_SEED, min=0, metavar="N", help="The seed that chooses the blocks.")
    ] = 0,
    output: groups.OutputOptions = groups.OUTPUT,
) -> int:
    """Compute some blocks of a result again, and exit with 1 if they differ from those in its folder.

    For results that --out kept in blocks: stats, predict, explain and check over many images. Model and images are
    looked for where the command found them, so run it in the same folder. On the same kind of machine all bits have
    to be equal, elsewhere the numbers to within 0.1 %. The report has to say what all blocks add up to.

    Examples:

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --batch 8
        --out activations

      modelscope verify activations --sample 20

      modelscope verify activations/report.json --json
    """
    from modelscope_cli.commands.verify.table import verify_columns, verify_sheet

    where = output.begin()
    where.view.check(verify_columns())
    record = ms.verify(result, sample=sample, seed=seed, progress=PROGRESS)
    emit(where, verify_sheet(record), record)
    return 0 if record.passed else NOT_PASSED
