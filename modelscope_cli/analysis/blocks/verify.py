"""`verify`: recompute some blocks of a result, and compare them and the report with its folder."""

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from modelscope_cli.analysis.blocks.blocks import TOLERANCE, Verifying, verifying
from modelscope_cli.analysis.blocks.folder import (
    TIMING,
    BlockFolder,
    changed_files,
    input_request,
    keywords_of,
    model_request,
)
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.request import Model
from modelscope_cli.records.certificate import VerifyRecord
from modelscope_cli.records.keywords import spelled_out
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Record
from modelscope_cli.report.formats import DOCUMENT, strict
from modelscope_cli.report.reading import PAGE

SAMPLE = 8
# Fields of a report that describe the run and not its results.
_CIRCUMSTANCES = {"tool", "argv", "elapsed_ms", "warnings", "out_dir", "files", "feeding", TIMING}


@spelled_out
def verify(
    result: str | PathLike[str],
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    model: "Model | None" = None,
    progress: Progress | None = None,
) -> VerifyRecord:
    """Recompute blocks of a stored result and compare them with those in its folder.

    The totals of the report have to match its blocks, and its files must be unchanged.

    On the same kind of machine, with the same version of torch and as many threads, all bits have to be the same;
    otherwise numbers may differ by 0.1 % of the largest in their list.

    Args:
        result: the folder that --out named, or the report.json in it.
        sample: how many blocks to recompute.
        seed: the seed that chooses the blocks.
        model: the module, if one was passed to the function.

    Raises:
        UsageError: a keyword that is not valid, or a module that is not there (exit 2 on the command line).
        CannotRunError: no blocks, or not all of them; the model or the images cannot be found (exit 4).
    """
    path = Path(result)
    folder = BlockFolder(path.parent if path.name == DOCUMENT else path)
    document = folder.document()
    if document is None:
        message = f"'{folder.path}' contains no blocks, so nothing can be recomputed"
        raise CannotRunError(
            message, "give the command --out DIR, which stores them for more images than --batch"
        )
    requested = model if model is not None else model_request(document)
    if requested is None:
        raise UsageError(
            f"the model of '{folder.path}' was passed from Python",
            "give the module: verify(..., model=module)",
        )
    check = Verifying(folder, sample, seed)
    with verifying(check):
        recomputed = _compute(document, requested, progress)
    certificate = check.certificate(document)
    in_report = _in_report(folder.path / DOCUMENT, recomputed)
    differences = [*check.differences, *in_report, *changed_files(folder.path, (DOCUMENT, PAGE))]
    for difference in differences:
        (progress.warn if progress is not None else str)(difference)
    return VerifyRecord(
        run=replace(recomputed.run, command="verify"),
        result=str(folder.path),
        of=document["command"],
        blocks=tuple(check.checked),
        tolerance=TOLERANCE,
        machine=check.machine,
        certificate=certificate,
        differences=tuple(differences),
        passed=not differences and all(block.passed for block in check.checked),
    )


def _compute(document: Mapping[str, Any], model: Any, progress: Progress | None) -> Record:
    """Repeat the call of the public function that made the result."""
    import modelscope_cli

    keywords = keywords_of(document)
    if "each" in keywords:  # whether rows were streamed to a callback
        keywords["each"] = (lambda record: None) if keywords["each"] else None
    function = getattr(modelscope_cli, document["command"])
    return function(model, input_request(document), **keywords, progress=progress)


def _in_report(path: Path, recomputed: Record) -> list[str]:
    """Describe the figures of the report that differ from the result of the blocks."""
    try:
        report = json.loads(path.read_bytes())
    except OSError:
        return []
    except ValueError as error:
        return [f"'{path}' is not a report: {error}"]
    document = json.loads(json.dumps(strict(recomputed.to_dict())))
    changed_keys = [
        key
        for key in sorted({*report, *document} - _CIRCUMSTANCES)
        if _figures(report.get(key)) != _figures(document.get(key))
    ]
    return [f"'{path}' has a '{key}' that does not match the totals of the blocks" for key in changed_keys]


def _figures(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _figures(item) for key, item in value.items() if key not in _CIRCUMSTANCES | {"file"}}
    return [_figures(item) for item in value] if isinstance(value, list) else value
