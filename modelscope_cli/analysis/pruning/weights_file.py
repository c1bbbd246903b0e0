"""The pruned weights as a file."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.paths import with_file
from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.folder import check_file
from modelscope_cli.report.tensor_file import write_tensors


def check_weights_file(path: Path, sources: Iterable[Path], is_forced: bool) -> None:
    """Refuse a file for the pruned weights that cannot or should not be written, before anything long is begun.

    Raises:
        UsageError: not .safetensors, or one of the `sources` of the weights (exit 2).
        CannotRunError: it cannot be written (exit 4).
    """
    if path.suffix.lower() != ".safetensors":
        message = f"'--save-weights {path}' does not end in .safetensors"
        raise UsageError(message, with_file("--save-weights", path, ".safetensors"))
    if path.resolve() in {source.resolve() for source in sources}:
        message = f"'--save-weights {path}' would overwrite the checkpoint itself"
        raise UsageError(message, f"--save-weights {shlex.quote(str(path.with_stem(f'{path.stem}-pruned')))}")
    check_file(path, is_forced)


def write_weights(
    path: Path, record: PruneRecord, state: dict[str, Any], categories: Sequence[str] | None
) -> int:
    """Write a state dict whose header says what was done, and names the classes; return the bytes of the file."""
    run, totals = record.run, record.totals
    pruning = {
        "amount": record.amount,
        "method": record.method,
        "structured": record.structured,
        "scope": record.scope,
        "cut": record.what_is_cut,
        "layers": [
            f"{layer.name}.{layer.parameter}" if layer.name else layer.parameter for layer in record.layers
        ],
        "zeros": totals.zeros,
        "numel": totals.numel,
        "of": f"{run.model.name}, weights {run.model.weights.resolved}",
        "sha256_of_source": run.model.weights.sha256,
        "seed": run.seed,
        "by": f"modelscope {run.versions['version']}, torch {run.versions['torch']}",
        "note": "zeros alone do not make the file smaller or the forward pass faster",
    }
    about: dict[str, Any] = {"pruning": pruning}
    if categories:
        about["categories"] = list(categories)
    return write_tensors(path, state, **about)
