"""The request for a model as typed, before anything heavy is imported."""

import ast
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES, MODEL_SUFFIXES, is_onnx_file
from modelscope_cli.errors import UsageError
from modelscope_cli.library_types import Module
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.names import model_names
from modelscope_cli.records.identified import Identified
from modelscope_cli.records.keywords import DEFAULTS, ClassifierKeywords, ModelKeywords
from modelscope_cli.records.naming import LAST_SEED
from modelscope_cli.records.refusals import check_range

_AS_TYPED = ("weights", "key", "strict", "num_classes", "device", "dtype", "seed")
_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers read to identify a checkpoint's model, kept so that they are read once."""

    # path, key: the request they were read for
    path: Path
    key: str | None
    contents: Contents
    architecture: Identified  # the matching architecture, or the nearest


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """All options about the model, `device` and `dtype` as typed."""

    # A torchvision name, a checkpoint of one, `timm:NAME`, `hf:NAME`, `package.module:attr` or
    # `path/to/file.py:attr`
    model: str = "resnet34"
    weights: str = "auto"  # `auto`, `none`, `DEFAULT` or an enum name such as `IMAGENET1K_V1`, in any case
    checkpoint: Path | None = None  # a file with a state dict to load into the architecture
    key: str | None = None  # key in the checkpoint, `state_dict_ema`; None for the usual place
    # False if a checkpoint need not fit exactly; None or True if it must. True refuses broken images.
    strict: bool | None = None
    # Classes of the head; None for the architecture's, or the checkpoint's, own
    num_classes: int | None = None
    model_args: tuple[str, ...] = ()  # `key=value` as typed, for the builder of the model
    device: str = "auto"
    dtype: str = "float32"
    seed: int = 0  # of every random initialisation
    # Whether weights that `auto` cannot get are an error, for commands that give a verdict
    needs_weights: bool = False
    progress: bool = True  # show the progress of a download on stderr
    # Those of the checkpoint, if already read: see `recognise`
    headers: Headers | None = field(default=None, compare=False, repr=False)

    @property
    def is_offline(self) -> bool:
        """Whether the network must not be used: `MSCOPE_OFFLINE=1`."""
        return os.environ.get("MSCOPE_OFFLINE", "0") not in ("", "0")

    @property
    def is_strict(self) -> bool:
        """Whether a checkpoint that does not fit exactly is an error."""
        return self.strict is not False

    def headers_of(self, path: Path) -> Headers | None:
        """Return the headers if they are those of `path` and the same key."""
        headers = self.headers
        return headers if headers is not None and (headers.path, headers.key) == (path, self.key) else None


# A name, a file, `package.module:attr`, a module, or the result of `load`.
Model: TypeAlias = "str | PathLike[str] | Module | LoadedModel | ModelRequest"


def seed_of(model: "Model", keywords: ModelKeywords | ClassifierKeywords) -> int:
    """Return the seed: that of the request, or the keyword passed with a module."""
    return model.seed if isinstance(model, ModelRequest) else keywords.get("seed", DEFAULTS["seed"])


def as_request(model: "Model", keywords: ModelKeywords) -> ModelRequest:
    """Return the request for a model; a request is returned unchanged."""
    if isinstance(model, ModelRequest):
        return model
    if not isinstance(model, str | PathLike):
        if isinstance(model, type):
            message = f"'{model.__name__}' is a class, and a model is an instance of one"
            raise UsageError(message, f"give {model.__name__}()")
        if isinstance(model, Mapping):
            raise UsageError(
                "a dict of weights is not a model", "build the model, model.load_state_dict(weights)"
            )
        message = f"a model of type {type(model).__name__} is neither a name, a path nor a torch.nn.Module"
        raise UsageError(message, "give a name such as 'resnet34', or a module")
    options = {**DEFAULTS, **keywords}
    check_range("num_classes", options["num_classes"], least=1)
    check_range("seed", options["seed"], least=0, most=LAST_SEED)
    args = options["model_arg"]
    args = [args] if isinstance(args, str) else args
    return ModelRequest(
        model=fspath(model),
        checkpoint=Path(options["checkpoint"]) if options["checkpoint"] is not None else None,
        model_args=tuple(f"{key}={value}" for key, value in args.items())
        if isinstance(args, Mapping)
        else tuple(args),
        progress=False,
        **{name: options[name] for name in _AS_TYPED},
    )


def weights_file(request: ModelRequest) -> Path | None:
    """Return the file or folder of the weights; None without one."""
    path = Path(request.model) if is_checkpoint(request.model) else request.checkpoint
    return path if path is not None and path.exists() else None


def is_import(model: str) -> bool:
    """Tell whether a model is `package.module:attr`, `file.py:attr` or of a hub, not a torchvision name."""
    return ":" in model


def is_onnx(model: str) -> bool:
    return not is_import(model) and is_onnx_file(Path(model))


def is_exported(model: str) -> bool:
    """Tell whether a model is a file of torch.export."""
    return not is_import(model) and Path(model).suffix.lower() == ".pt2"


def is_program(model: str) -> bool:
    """Tell whether a model is a file that is run as it is: ONNX, or of torch.export."""
    return is_onnx(model) or is_exported(model)


def is_checkpoint(model: str) -> bool:
    """Tell whether a model is a file or folder of weights, not a name."""
    path = Path(model)
    if (
        is_import(model)
        or is_program(model)
        or model.lower() in model_names()
        or path.suffix == ".py"
        or not model
    ):
        return False
    return path.suffix.lower() in (*CHECKPOINT_SUFFIXES, *MODEL_SUFFIXES) or path.exists()


def parse_model_args(typed: tuple[str, ...]) -> dict[str, Any]:
    """Turn `key=value` arguments into keyword arguments; values are Python literals, else strings."""
    kwargs: dict[str, Any] = {}
    for argument in typed:
        key, equals, value = argument.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            name, colon, text = key.partition(":")
            meant = f"{name}={text}" if colon else f"{key if key.isidentifier() else 'NAME'}=VALUE"
            raise UsageError(f"'{argument}' is not of the form key=value", f"--model-arg {meant}")
        if key in kwargs:
            raise UsageError(f"model argument '{key}' is given twice", f"--model-arg {shlex.quote(argument)}")
        kwargs[key] = _value(value.strip())
    return kwargs


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
