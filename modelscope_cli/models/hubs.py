"""Resolve model names of timm and transformers. Standard library.

A library is imported only for its prefix (`timm:NAME`, `hf:owner/name`, `hf:./folder`). A checkpoint names its hub
model in its own metadata or in a `config.json` next to it.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.errors import UsageError, with_nearest
from modelscope_cli.models.names import file_with, model_names, timm_names

# The files that transformers reads in a folder; its `config.json` need not describe any other.
_OF_TRANSFORMERS = tuple(
    f"{name}{ending}" for name in ("model.safetensors", "pytorch_model.bin") for ending in ("", ".index.json")
)
_NAME_KEYS = ("architecture", "arch", "model", "model_name")
# The cfg keys about images and classes; the others locate the weights, which are already here.
_KEPT = (
    *("architecture", "tag", "input_size", "fixed_input_size", "interpolation", "crop_pct"),
    *("crop_mode", "mean", "std", "num_classes", "label_names", "label_descriptions", "first_conv"),
    *("classifier", "pool_size"),
)


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A model of a hub."""

    model: str  # `timm:NAME` or `hf:FOLDER`
    by: str  # where this was read, in words
    model_args: tuple[str, ...] = ()  # `key=value`, as typed on the command line

    @property
    def is_whole(self) -> bool:
        """Whether the folder is loaded as a whole, weights included."""
        return self.model.startswith("hf:")


def described_beside(path: Path) -> DescribedModel | None:
    """Return the model described by the `config.json` of a folder or next to a file; None without a known one."""
    folder = path if path.is_dir() else path.parent
    config = _read(folder / "config.json")
    by = f"the config.json in '{folder}'"
    # Many tools write a file of this name; timm's also describes the preprocessing.
    if "architecture" in config and ("pretrained_cfg" in config or {"mean", "input_size"} <= config.keys()):
        return _of_timm(config, by)
    if "model_type" in config and (path.is_dir() or path.name in _OF_TRANSFORMERS):
        return DescribedModel(f"hf:{folder}", by)
    return None


def described_within(contents: Contents) -> DescribedModel | None:
    """Return the model named in safetensors metadata, or in what timm saves with the tensors."""
    by = f"the metadata of '{contents.path}'"
    cfg = _parsed(contents.metadata.get("pretrained_cfg", ""))
    name = next((name for name in names_in(contents, cfg) if name in timm_names()), None)
    return _of_timm({"architecture": name, "pretrained_cfg": cfg}, by) if name else None


def names_in(contents: Contents, cfg: Mapping[str, Any]) -> Iterator[str | None]:
    """Yield what a checkpoint calls its architecture, in its metadata, beside its tensors or in timm's `cfg`."""
    for key in _NAME_KEYS:
        yield contents.metadata.get(key) or contents.beside.get(key, "").strip("'") or cfg.get(key)


def _of_timm(config: Mapping[str, Any], by: str) -> DescribedModel:
    # Older files have the cfg at the top.
    cfg = config["pretrained_cfg"] if isinstance(config.get("pretrained_cfg"), dict) else config
    settings = {**{key: config[key] for key in ("num_classes", "label_names") if key in config}, **cfg}
    overlay = {key: settings[key] for key in _KEPT if settings.get(key) is not None}
    model_args = config.get("model_args")
    args = {**model_args} if isinstance(model_args, dict) else {}
    args.pop("num_classes", None)  # the checkpoint determines it
    if len(overlay) > 1:  # more than its name
        args["pretrained_cfg"] = overlay
    return DescribedModel(
        f"timm:{config['architecture']}", by, tuple(f"{key}={value!r}" for key, value in args.items())
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        return _parsed(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, UnicodeDecodeError):
        return {}


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


# The package of each prefix, as `pip install` names it.
PACKAGES = {"timm": "timm", "hf": "transformers"}


def split_hub(model: str) -> tuple[str, str]:
    """Return the prefix and what follows it: `("timm", "resnet50d")`; any other model has the prefix `""`."""
    prefix, colon, name = model.partition(":")
    return (prefix, name) if colon and prefix in PACKAGES else ("", model)


def check_hub(model: str) -> None:
    """Refuse a hub model if its library is not installed or does not have the name."""
    prefix, name = split_hub(model)
    check_package(prefix, model)
    if prefix == "timm" and not is_in_timm(name):
        names = (f"timm:{timm_name}" for timm_name in timm_names())
        message = with_nearest(f"unknown model '{model}'", model.partition(".")[0], names)
        raise UsageError(message, "modelscope summary --list timm:")
    if prefix == "hf":
        _check_folder(model, name)


def _check_folder(model: str, name: str) -> None:
    is_path = name.startswith((".", "/", "~")) or os.path.isdir(name)
    if not name or (is_path and not os.path.isdir(name)):
        raise UsageError(f"'{model}' names neither a model nor a folder", "--model hf:OWNER/NAME")
    if is_path and not os.path.isfile(os.path.join(name, "config.json")):
        message = f"'{name}' is not a transformers folder: it has no config.json"
        raise UsageError(message, f"ls {shlex.quote(name)}")
    described = described_beside(Path(name)) if is_path else None
    if described is not None and not described.is_whole:
        raise UsageError(f"'{name}' is a timm folder, not a transformers one", f"--model {shlex.quote(name)}")


def check_package(prefix: str, typed: str) -> None:
    """Refuse a prefix whose library is not installed."""
    package = PACKAGES[prefix]
    if find_spec(package) is None:
        message = f"'{typed}' needs the package '{package}', which is not installed"
        raise UsageError(message, f"pip install {package}")


def is_in_timm(name: str) -> bool:
    """Tell whether timm is installed and has this architecture; a tag may follow the name."""
    return name.partition(".")[0] in timm_names()


def close_hubs(*, is_offline: bool) -> None:
    """Keep the hub libraries off the network for the rest of the process, imported yet or not, if it is offline."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # without a line for each retry
    if is_offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants: Any = sys.modules.get("huggingface_hub.constants")
        if constants is not None:
            constants.HF_HUB_OFFLINE = True


_HUB = re.compile(r"(?P<owner>[\w-]+)/(?P<name>[\w.-]*[\d-][\w.-]*)")


def imported(name: str) -> str | None:
    """Return `file.py:Net` or `package.module:Net` for `package.module.Net`; None without a module."""
    module, dot, attribute = name.rpartition(".")
    file = Path(f"{module.replace('.', '/')}.py")
    return f"{file if file.is_file() else module}:{attribute}" if dot else None


def named_here(model: str) -> str | None:
    """Return a model that is spelled as elsewhere, such as `torchvision.models.resnet18` or `ResNet-18`, or without
    the prefix of its hub; None for any other name."""
    plain = re.sub(r"[\W_]", "", model.rpartition(".")[2].lower())
    for name in model_names():
        if plain == name.replace("_", ""):
            return name
    if (file := file_with(model)) is not None:
        return f"{file}:{model}"
    if is_in_timm(model):
        return f"timm:{model}"
    if (match := _HUB.fullmatch(model)) and not Path(match["owner"]).exists():
        return f"timm:{match['name']}" if match["owner"] == "timm" else f"hf:{model}"
    return None
