"""Models of other libraries by name: `timm:NAME`, `hf:owner/name`, `hf:./folder`. Standard library only.

A library is imported when a prefix asks for it, and never before.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.models.beside import described_beside
from modelscope_cli.models.names import timm_names

# What each prefix needs, which is also what `pip install` calls it.
PACKAGES = {"timm": "timm", "hf": "transformers"}
# Read by huggingface_hub and transformers when they are imported.
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def split_hub(model: str) -> tuple[str, str]:
    """Return the prefix and what follows it: `("timm", "resnet50d")`; any other model has the prefix `""`."""
    prefix, colon, name = model.partition(":")
    return (prefix, name) if colon and prefix in PACKAGES else ("", model)


def check_hub(model: str) -> None:
    """Refuse a model of a hub whose library is not installed, or a name that it does not know.

    Raises:
        UsageError: exit code 2.
    """
    prefix, name = split_hub(model)
    check_package(prefix, model)
    if prefix == "timm" and not is_in_timm(name):
        near = nearest(model.partition(".")[0], [f"timm:{known}" for known in timm_names()])
        message = f"unknown model '{model}'" + (f": {near}" if near else "")
        raise UsageError(message, "modelscope models timm:")
    if prefix == "hf":
        _check_folder(model, name)


def _check_folder(model: str, name: str) -> None:
    is_path = name.startswith((".", "/", "~")) or os.path.isdir(name)
    if not name or (is_path and not os.path.isdir(name)):
        raise UsageError(f"'{model}' names neither a model nor a folder", "--model hf:OWNER/NAME")
    if is_path and not os.path.isfile(os.path.join(name, "config.json")):
        message = f"'{name}' is not a folder of transformers: it has no config.json"
        raise UsageError(message, f"ls {shlex.quote(name)}")
    described = described_beside(Path(name)) if is_path else None
    if described is not None and not described.is_whole:
        raise UsageError(f"'{name}' is a folder of timm, not of transformers", f"--model {shlex.quote(name)}")


def check_package(prefix: str, typed: str) -> None:
    """Refuse what was typed where the library of a prefix is not installed.

    Raises:
        UsageError: exit code 2.
    """
    package = PACKAGES[prefix]
    if find_spec(package) is None:
        message = f"'{typed}' needs the package '{package}', which is not installed"
        raise UsageError(message, f"pip install {package}")


def is_in_timm(name: str) -> bool:
    """Tell whether timm is installed and has an architecture of this name, which may be followed by a tag."""
    return name.partition(".")[0] in timm_names()


@contextmanager
def hubs_closed(is_offline: bool) -> Iterator[None]:
    """Keep the libraries of the hubs off the network while open, whether or not they are imported yet."""
    if not is_offline:
        yield
        return
    before = {name: os.environ.get(name) for name in _SWITCHES}
    was_closed = _is_closed()
    os.environ.update(dict.fromkeys(_SWITCHES, "1"))
    _close(True)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _close(was_closed)


def _is_closed() -> bool:
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        return bool(constants.HF_HUB_OFFLINE)
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _SWITCHES)


def _close(is_closed: bool) -> None:
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        constants.HF_HUB_OFFLINE = is_closed  # type: ignore[attr-defined]
