"""Choose pretrained weights and locate or download their file."""

import http.client
import inspect
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import EnumType
from pathlib import Path, PurePosixPath
from typing import get_args
from urllib.parse import urlparse

import torch

from modelscope_cli.errors import CannotRunError, UsageError, nearest
from modelscope_cli.models.zoo import WeightsEnum, get_model_builder

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
    near = nearest(requested, names)
    first = near.removeprefix("did you mean ").split(", ")
    others = sorted(names, key=lambda other: first.index(other) if other in first else len(first))
    message = f"there are no weights '{requested}', only {', '.join(others)} for '{name}'"
    raise UsageError(message, near or f"try {', '.join(others)}")


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
