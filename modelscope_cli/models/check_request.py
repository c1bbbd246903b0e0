"""Check the request for a model as typed, without importing torch."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError, nearest
from modelscope_cli.models.hubs import check_hub, imported, named_here, split_hub
from modelscope_cli.models.names import model_names, models_in, refuse_missing_file
from modelscope_cli.models.request import (
    ModelRequest,
    is_checkpoint,
    is_exported,
    is_import,
    is_program,
    parse_model_args,
)
from modelscope_cli.paths import look_for
from modelscope_cli.records.run import invocation


def check_request(request: ModelRequest) -> ModelRequest:
    """Validate a request without importing torch, so that typos fail fast.

    Returns:
        the request with the headers of a checkpoint given as the model.
    """
    checked = request
    if request.model.startswith(("http://", "https://")):
        message = f"'{request.model}' is a URL, but models and weights are read from files"
        raise UsageError(message, look_for(request.model))
    if is_program(request.model):
        _check_program(request)
    elif is_checkpoint(request.model):
        from modelscope_cli.models.model_of_checkpoint import recognise

        request, _ = recognise(request)
        checked = replace(checked, headers=request.headers)
    elif split_hub(request.model)[0]:
        check_hub(request.model)
    elif request.model.startswith("torchvision:") and (name := request.model[12:].lower()) in model_names():
        raise UsageError(f"'{request.model}': torchvision names have no prefix", f"did you mean {name}")
    elif is_import(request.model):
        refuse_missing_file(request.model)
    elif request.model.lower() not in model_names():
        raise _unknown_model(request.model)
    parse_model_args(request.model_args)
    if request.checkpoint is not None and request.weights.lower() not in ("auto", "none"):
        message = f"weights '{request.weights}' and checkpoint '{request.checkpoint}' cannot be combined"
        raise UsageError(message, f"leave out --weights {request.weights}")
    if request.key is not None and request.checkpoint is None:
        message = f"'--key {request.key}' needs a checkpoint, but none is given"
        raise UsageError(message, f"leave out --key {shlex.quote(request.key)}")
    return checked


def _check_program(request: ModelRequest) -> None:
    """Refuse what an exported program cannot be given: it holds its weights, and computes where it was exported."""
    if is_exported(request.model) and not Path(request.model).is_file():
        raise CannotRunError(f"no model file '{request.model}'", look_for(Path(request.model)))
    usual = {"weights": "auto", "checkpoint": None, "num_classes": None, "model_args": (), "key": None}
    for name, default in {**usual, "dtype": "float32"}.items():
        value = getattr(request, name)
        if value != default and (name, value) != ("weights", "none"):
            option = "--model-arg" if name == "model_args" else f"--{name.replace('_', '-')}"
            typed = value[0] if isinstance(value, tuple) else value
            message = f"'{option} {typed}' does not apply to '{request.model}'"
            message += ": an exported program is run as it is"
            raise UsageError(message, f"leave out {option} {shlex.quote(str(typed))}")
    if request.device.lower() not in ("auto", "cpu"):
        where = f"on the cpu, not on '{request.device}'"
        message = f"'{request.model}' is an exported program, which is run {where}"
        raise CannotRunError(message, "--device cpu")


def _unknown_model(model: str) -> UsageError:
    path = Path(model)
    if path.suffix == ".py" and not path.exists():
        raise CannotRunError(f"no model file '{model}'", look_for(path))
    if path.suffix == ".py":
        names = models_in(path)
        name = names[0] if names else "NAME"
        message = f"'{model}' is a file: name the class to build, as in {model}:{name}"
        message += f" (or {', '.join(names[1:])})" if names[1:] else ""
        return UsageError(message, f"--model {shlex.quote(f'{model}:{name}')}")
    known = named_here(model)
    if known is not None:
        return UsageError(f"unknown model '{model}': did you mean {known}", f"--model {shlex.quote(known)}")
    attribute = model.rpartition(".")[2]
    if "." in model and attribute.isidentifier() and not attribute.islower():  # `package.module.Net`
        return UsageError(f"unknown model '{model}'", f"--model {imported(model)}")
    if path.suffix[1:].isalpha() or path.parent != Path():
        return UsageError(f"'{model}' is neither a model nor a file or folder", look_for(path))
    suggestion = nearest(model, model_names())
    beside = look_for(path)
    if invocation().argv[:1] == ("report",) and (not suggestion or beside.startswith("did you mean")):
        message = f"'{model}' is neither a model nor a folder with a saved result"
        return UsageError(message, f"{beside} or modelscope summary --list")
    family = re.match("did you mean ([a-z]+)", suggestion)
    hint = "modelscope summary --list" + (f" {family[1]}" if family else "")
    return UsageError(f"unknown model '{model}'{': ' + suggestion if suggestion else ''}", hint)
