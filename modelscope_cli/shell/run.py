"""What every command that runs a model does before and after: load, open the inputs, fill the header."""

import time
from typing import TYPE_CHECKING, Any

from modelscope_cli.shell import console as _console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelscope_cli.analysis.interventions import HookFindings, ReadHook
    from modelscope_cli.hooks.binding import BoundHooks
    from modelscope_cli.inputs.batch import Inputs
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.load import LoadedModel
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.records.run import InputInfo, Notice, Run


def set_up(quiet: bool, debug: bool, force: bool) -> None:
    """Remember how much to say and what may be overwritten; the first thing a command does."""
    _console.settings.is_quiet = quiet
    _console.settings.is_debug = debug


def read_options(
    options: dict[str, Any],
) -> tuple["ModelRequest", "InputRequest"]:
    """Turn the shared options of a command, its `locals()`, into what was asked for, and check the model's.

    Raises:
        UsageError, CannotRunError: what is wrong with a name or missing as a file; nothing heavy has been
            imported by then.
    """
    from modelscope_cli.inputs.files import find_pictures
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest, check_request

    request = ModelRequest(
        model=options["model"],
        weights=options.get("weights", "none"),
        checkpoint=options["checkpoint"],
        key=options["key"],
        strict=options["strict"],
        num_classes=options["num_classes"],
        model_args=tuple(options["model_arg"] or ()),
        device=options.get("device", "auto"),
        dtype=options["dtype"],
        seed=options["seed"],
        offline=options.get("offline", False),
        progress=not options["quiet"],
    )
    check_request(request)
    given = InputRequest(
        files=tuple(options.get("images") or ()),
        shapes=tuple(options["input_shape"] or ()),
        size=options.get("size"),
        mean=options.get("mean"),
        std=options.get("std"),
        normalize=options.get("normalize", True),
        batch=options.get("batch"),
        repeat=options.get("repeat", 1),
        seed=options["seed"],
    )
    find_pictures(file for file in given.files if file != "-")
    return request, given


def load(request: "ModelRequest") -> "LoadedModel":
    """Load the model and say what was decided on the way."""
    from modelscope_cli.models.load import load_model

    loaded = load_model(request)
    tell(loaded.notes, loaded.warnings)
    return loaded


def open_for(request: "InputRequest", loaded: "LoadedModel") -> "Inputs":
    """Open the inputs for a model and say what was decided on the way."""
    from modelscope_cli.inputs.batches import open_inputs

    inputs = open_inputs(
        request,
        family=loaded.family,
        transforms=loaded.transforms,
        module=loaded.module,
        device=loaded.device,
        dtype=loaded.dtype,
    )
    tell(inputs.notes, inputs.warnings)
    return inputs


def tell(notes: tuple[str, ...], warnings: tuple["Notice", ...]) -> None:
    """Write notes and warnings to stderr."""
    for text in notes:
        _console.note(text)
    for warning in warnings:
        _console.warn(warning.message)


def bind(
    hooks: "Sequence[ReadHook]", loaded: "LoadedModel", args: tuple[Any, ...], seed: int
) -> "BoundHooks":
    """Bind the hooks to a model and say how patterns were understood."""
    from modelscope_cli.analysis import interventions

    return interventions.bind(hooks, loaded, args, seed, _console.PROGRESS)


def conclude(bound: "BoundHooks") -> "HookFindings":
    """Write what the hooks saved and say what went wrong."""
    from modelscope_cli.analysis import interventions

    return interventions.conclude(bound, _console.PROGRESS)


def make_run(
    command: str, loaded: "LoadedModel", given: "InputInfo | None", seed: int, warnings: tuple["Notice", ...]
) -> "Run":
    """Fill the header that every record begins with."""
    from modelscope_cli.records.run import Run, versions

    return Run(
        command=command,
        argv=_console.settings.argv,
        model=loaded.info,
        input=given,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        seed=seed,
        versions=versions(),
        warnings=warnings,
        elapsed_ms=(time.monotonic() - _console.settings.started) * 1000,
    )
