"""`diff`: the public function."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Unpack

from modelscope_cli.analysis.comparison.request import (
    BSettings,
    Source,
    holds_weights,
    is_input,
    read_names,
    refuse_given,
    refuse_script,
    requests_of,
)
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.files import check_pictures
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.request import Model, ModelRequest, as_request
from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.records.keywords import MODES, Keywords, spelled_out
from modelscope_cli.records.naming import LAST_SEED
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.reading import is_result
from modelscope_cli.records.refusals import check_range, check_word
from modelscope_cli.records.run import Record, invocation


@spelled_out
def diff(
    a: "Model | Record | Mapping[str, Any]",
    b: "Model | Record | Mapping[str, Any] | None" = None,
    inputs: Any = None,
    *,
    tolerance: float | None = None,
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    mode: str = "auto",
    model: str | None = None,
    b_weights: str | None = None,
    b_checkpoint: str | PathLike[str] | None = None,
    b_key: str | None = None,
    b_device: str | None = None,
    b_dtype: str | None = None,
    b_mode: str | None = None,
    b_seed: int | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[Keywords],
) -> DiffRecord:
    """Compare two checkpoints, two models, or one under two settings: their weights or, with an input, every layer.

    Args:
        a, b: names, files or modules of yours; as b also an ONNX file, a torch.export program, or in Python an
            `ExportedProgram`; without an input also dicts of weights. Two results of the same command (in Python
            records, else documents, pages or folders) are compared number by number. Without b, B is a under the
            settings of b_... . If both are the same module, B is a copy. Two modules may not share layers in a run.
            A checkpoint is loaded into a copy of the module it is compared with.
        inputs: as elsewhere; None, and no `input_shape`, compares the weights.
        tolerance: the largest relative L2 that counts as equal, or relative difference of results.
        layer, exclude: layer patterns.
        mode: of both; `auto` is eval.
        model: the model that a checkpoint is loaded into; without another model or checkpoint, A.
        b_weights: the weights of B.
        b_checkpoint: the checkpoint to load into B.
        b_key: the entry of B's checkpoint to load.
        b_device: the device of B.
        b_dtype: the dtype of B.
        b_mode: the mode of B.
        b_seed: the seed of B's random weights and of its dropout.

    Raises:
        UsageError: nothing to compare, or a keyword that is not valid here (exit 2 on the command line).
        CannotRunError: a side cannot be loaded or raises an error, or they have nothing in common (exit 4).
    """
    check_range("tolerance", tolerance, least=0)
    check_word("mode", mode, MODES)
    check_word("b_mode", b_mode, MODES)
    check_range("b_seed", b_seed, least=0, most=LAST_SEED)
    invoked = invocation()
    checkpoint = Path(b_checkpoint) if b_checkpoint is not None else None
    of_b = BSettings(b_weights, checkpoint, b_key, b_device, b_dtype, b_mode, b_seed)
    request = next((side for side in (a, b) if isinstance(side, ModelRequest)), None)
    settings = request or as_request("", keywords)
    a, b = _text(a), _text(b)
    are_results = [isinstance(side, Record) or (isinstance(side, str) and is_result(side)) for side in (a, b)]
    if any(are_results):
        from modelscope_cli.analysis.comparison.results import compare_results

        if not all(are_results):
            result, other = (a, b) if are_results[0] else (b, a)
            model = shlex.quote(other) if isinstance(other, str) else "NAME"
            message = f"'{result}' is a saved result, but the other side is not: there is nothing to compare"
            raise UsageError(
                message, f"modelscope stats {model} -o other.json   saves a result to compare it with"
            )
        is_request = isinstance(inputs, InputRequest)
        given = (inputs.files or inputs.shapes or inputs.named) if is_request else inputs
        asked = None if mode == "auto" else mode
        options = {"--layer": layer, "--exclude": exclude, "--mode": asked, "--model": model, **of_b.typed()}
        options["inputs"] = None if given is None else given or None
        refuse_given(options, "needs models to run, but these are saved results", "")
        return compare_results(a, b, tolerance, invoked)
    files = _files(inputs)
    if isinstance(b, str) and is_input(b):
        if files is None:
            raise UsageError(f"'{b}' and inputs= both give an input", "leave out one of them")
        files, b = (b, *files), None
    if files is not None:
        inputs = replace(inputs, files=files) if isinstance(inputs, InputRequest) else list(files) or None
    shapes = inputs.shapes + inputs.named if isinstance(inputs, InputRequest) else keywords.get("input_shape")
    is_run = files is None or bool(files) or bool(shapes) or _runs_by_itself(a, b)
    if not is_run:
        reason = "needs a run, but there is no input"
        refuse_given({"--b-mode": b_mode}, reason, "--input-shape 1,3,224,224")
    given = [(a, b), (b, a), *((file and str(file), a) for file in (settings.checkpoint, checkpoint))]
    for side, other in given if is_run else ():
        if isinstance(side, str):
            known = str(settings.checkpoint or other or side)
            refuse_script(side, known if known != side else None)
    check_pictures(file for file in files or () if file != "-")
    sources = _sources(a, b, settings, of_b, model, keywords, is_run=is_run)

    from modelscope_cli.analysis.comparison.compare import ModelComparison
    from modelscope_cli.analysis.comparison.two_exports import compare_outputs, compare_weights
    from modelscope_cli.inputs.python_inputs import to_inputs

    comparison = ModelComparison(
        sources=sources,
        seeds=(settings.seed, settings.seed if b_seed is None else b_seed),
        tolerance=tolerance,
        progress=progress or SILENT,
        invoked=invoked,
    )
    if is_run:
        python_inputs = to_inputs(inputs, keywords)
        python_inputs = replace(
            python_inputs, request=replace(python_inputs.request, is_strict=settings.strict is True)
        )
        return compare_outputs(comparison, python_inputs, (mode, b_mode or mode), layer, exclude)
    return compare_weights(comparison, layer, exclude)


def _runs_by_itself(a: Any, b: Any) -> bool:
    """Tell whether B can only be compared by running it: on noise, where no input is given."""
    is_object = type(b).__name__ == "ExportedProgram"
    files = [side for side in (a, b) if isinstance(side, str)]
    is_onnx = any(side.lower().endswith(".onnx") for side in files)
    is_model = not all(holds_weights(side) for side in files) or len(files) < 1 + (b is not None)
    return is_model and (is_object or is_onnx)


def _text(side: Any) -> Any:
    """Return the name or path of a side as text; a module unchanged."""
    side = side.model if isinstance(side, ModelRequest) else side
    return fspath(side) if isinstance(side, PathLike) else side


def _files(inputs: Any) -> tuple[str, ...] | None:
    """Return the paths of the input; None if it is not given as paths."""
    if isinstance(inputs, InputRequest):
        return inputs.files
    several = list(inputs) if isinstance(inputs, list | tuple) else [] if inputs is None else [inputs]
    is_named = all(isinstance(item, str | PathLike) for item in several)
    return tuple(fspath(item) for item in several) if is_named else None


def _sources(
    a: Any,
    b: Any,
    settings: ModelRequest,
    of_b: BSettings,
    model: str | None,
    keywords: Keywords,
    *,
    is_run: bool,
) -> tuple[Source, Source]:
    if isinstance(a, str) and (b is None or isinstance(b, str)):
        names = read_names(a, b, model, is_run=is_run)
        if names[1].is_left_out and of_b == BSettings():
            message = f"there is nothing to compare '{a}' with"
            if holds_weights(a):
                hint = f"modelscope weights {shlex.quote(a)}   lists it; to compare, give another checkpoint as B"
            else:
                hint = "--b-dtype bfloat16   or another setting, or another model or checkpoint as B"
            raise UsageError(message, hint)
        return requests_of(settings, *names, of_b)
    from modelscope_cli.analysis.comparison.sides import sources_handed_over
    from modelscope_cli.analysis.subject import refuse_idle

    sources = sources_handed_over(a, b, settings, of_b, model, is_run=is_run)
    if not any(isinstance(source, ModelRequest) for source in sources):
        refuse_idle(keywords)
    return sources
