"""Build the models of `torchvision.models.list_models()`."""

import http.client
import inspect
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import EnumType
from pathlib import Path, PurePosixPath
from typing import Any, get_args
from urllib.parse import urlparse

import torch
from torch import nn

from modelscope_cli.errors import CannotRunError, UsageError, nearest, nearest_names
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.architecture import Architecture, SkipRandomFills, seeded

with without_dynamo():
    from torchvision.models import WeightsEnum, get_model_builder

# The rest of this folder imports torchvision from here, without dynamo.
__all__ = ["WeightsEnum", "build_pretrained", "family_of", "get_model_builder", "zoo_architecture"]

# Options of this tool; as builder arguments they would start downloads.
_OPTION_OF = {
    "weights": "--weights",
    "weights_backbone": "--weights",
    "quantize": "--weights",
    "num_classes": "--num-classes",
    "progress": "--quiet",
}


def zoo_architecture(name: str, weights: WeightsEnum, model_args: dict[str, Any], seed: int) -> Architecture:
    """Describe the torchvision model `name` as its `weights` require, with random values.

    `model_args` are keyword arguments for the builder and override those of the weights.
    """
    for key in model_args.keys() & _OPTION_OF.keys():
        message = f"model argument '{key}' is a separate option for torchvision models"
        raise UsageError(message, f"{_OPTION_OF[key]} {model_args[key]}")
    builder = get_model_builder(name)
    family = family_of(name)

    def build(num_classes: int | None) -> nn.Module:
        kwargs = {"weights": None, **_wanted(builder, weights), **model_args}
        if num_classes is not None:
            kwargs["num_classes"] = num_classes
        try:
            with seeded(seed):
                return _call(name, builder, kwargs, model_args)
        except RuntimeError as error:  # out of memory
            reason = str(error).strip().partition("\n")[0]
            raise CannotRunError(
                f"'{name}' cannot be built here: {reason}", f"modelscope summary {name}"
            ) from error

    return Architecture("zoo", name, family, build, takes_num_classes=family != "optical_flow")


def build_pretrained(name: str, weights: WeightsEnum, state: Any, model_args: dict[str, Any]) -> nn.Module:
    """Build `name` as its `weights` require and load `state`, the content of their file.

    torchvision's builder loads it, as it also renames old keys and adapts the architecture (auxiliary heads, input
    transformation, frozen and quantized layers).
    """
    kwargs: dict[str, Any] = {"weights": weights, **model_args}
    if "backend" in weights.meta:
        kwargs["quantize"] = True
    with _state_of_every_weights(state), SkipRandomFills():
        return _call(name, get_model_builder(name), kwargs, model_args)


def family_of(name: str) -> str:
    """Return the subpackage of torchvision.models that defines `name`; `classification` if none."""
    parts = get_model_builder(name).__module__.split(".")
    return parts[2] if len(parts) > 3 else "classification"


def _wanted(builder: Callable[..., nn.Module], weights: WeightsEnum) -> dict[str, Any]:
    """Return the arguments that a builder would choose given `weights`."""
    wanted: dict[str, Any] = {}
    parameters = inspect.signature(builder).parameters
    if "weights_backbone" in parameters:
        wanted["weights_backbone"] = None  # else the backbone weights are downloaded
    if "aux_loss" in parameters:
        wanted["aux_loss"] = True  # the second head of segmentation models
    if builder.__module__.endswith(".vision_transformer"):
        wanted["image_size"] = weights.meta["min_size"][0]
    if builder.__module__.endswith((".googlenet", ".inception")):
        wanted["init_weights"] = True  # the default, which warns unless set explicitly
    return wanted


def _call(
    name: str, builder: Callable[..., nn.Module], kwargs: dict[str, Any], model_args: dict[str, Any]
) -> nn.Module:
    with without_dynamo(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations between torchvision and torch
        if not model_args:
            return builder(**kwargs)
        try:
            return builder(**kwargs)
        except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError) as error:
            arguments = ", ".join(f"{key}={value}" for key, value in model_args.items())
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            parameters = inspect.signature(builder).parameters.keys() - _OPTION_OF.keys() - {"kwargs"}
            near = nearest(next(iter(model_args)), parameters)
            message = f"'{name}' cannot be built with '{arguments}': {reason}{'; ' + near if near else ''}"
            raise UsageError(message, "leave out --model-arg") from error


@contextmanager
def _state_of_every_weights(state: Any) -> Iterator[None]:
    """Make builders use `state` instead of downloading and unpickling a file."""
    original = WeightsEnum.get_state_dict
    WeightsEnum.get_state_dict = lambda self, *args, **kwargs: state
    try:
        yield
    finally:
        WeightsEnum.get_state_dict = original


CONNECT_TIMEOUT_S = 10


class WeightsUnavailableError(CannotRunError):
    """The file of known weights is neither cached nor downloadable; `auto` continues without it."""


def choose_weights(name: str, requested: str) -> WeightsEnum | None:
    """Return the requested weights of model `name`; None for `none`.

    `auto` and `DEFAULT` are torchvision's own recommendation.
    """
    if requested.lower() == "none":
        return None
    names = weights_of(name)
    wanted = "default" if requested.lower() == "auto" else requested.lower().rpartition(".")[2]
    for weights_name, weights in names.items():
        if weights_name.lower() == wanted:
            return weights
    first = next(iter(nearest_names(requested, names)), "DEFAULT")
    message = f"there are no weights '{requested}', only {', '.join(names)} for '{name}'"
    raise UsageError(message, f"--weights {first}")


def default_weights(name: str) -> WeightsEnum:
    """Return the weights that torchvision recommends for model `name`."""
    return weights_of(name)["DEFAULT"]


def is_quantized(weights: WeightsEnum) -> bool:
    """Whether these are 8-bit weights, for a quantized model on a CPU."""
    return "backend" in weights.meta


def find_weights(weights: WeightsEnum, *, offline: bool, progress: bool) -> tuple[Path, str]:
    """Return the file of `weights` and whether it came from the `cache` or a `download`.

    torch's own cache is read and filled: `$TORCH_HOME/hub/checkpoints`.
    """
    file_name = PurePosixPath(urlparse(weights.url).path).name
    path = Path(torch.hub.get_dir(), "checkpoints", file_name)
    if path.exists():
        return path, "cache"
    if offline:
        raise _unavailable(weights, path, "offline and not in the cache")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _connect_timeout():
            torch.hub.download_url_to_file(weights.url, str(path), promised_hash(path), progress=progress)
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", None)  # URLError wraps a more specific error
        reason = str(cause if isinstance(cause, Exception) else error) or type(error).__name__
        raise _unavailable(weights, path, f"download failed, {reason}") from error
    except RuntimeError as error:  # torch raises it for a wrong hash
        message = f"the download of '{weights.url}' is damaged: {error}"
        raise CannotRunError(message, "--weights none   or run the same command again") from error
    return path, "download"


def promised_hash(path: Path) -> str | None:
    """Return the SHA-256 prefix in a file name such as `resnet34-b627a593.pth`."""
    match = re.search(r"-([a-f0-9]{8,64})\.", path.name)
    return match[1] if match else None


def weights_of(name: str) -> dict[str, WeightsEnum]:
    """Return all weights of a model by name, with aliases; for quantized models also the float ones."""
    annotation = inspect.signature(get_model_builder(name)).parameters["weights"].annotation
    enums = [kind for kind in get_args(annotation) if isinstance(kind, EnumType)]
    # The first enum is the model's own: its DEFAULT wins.
    by_name: dict[str, WeightsEnum] = {}
    for kind in reversed(enums):
        by_name.update(kind.__members__)
    return by_name


def _unavailable(weights: WeightsEnum, path: Path, reason: str) -> WeightsUnavailableError:
    hint = f"--weights none   or put {path.name} into {path.parent}"
    return WeightsUnavailableError(f"weights '{weights.name}' are not available: {reason}", hint)


@contextmanager
def _connect_timeout() -> Iterator[None]:
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(CONNECT_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)
