"""Which model of a hub a checkpoint is of, by what it or the `config.json` beside it says. Standard library."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.models.names import timm_names

# The files that transformers reads of a folder; another file in it need not be what its `config.json` describes.
_OF_TRANSFORMERS = tuple(
    f"{name}{ending}" for name in ("model.safetensors", "pytorch_model.bin") for ending in ("", ".index.json")
)
_SAID_BY = ("architecture", "arch", "model", "model_name")
# What a cfg says of images and classes; the rest of it says where weights are, and those are at hand.
_KEPT = (
    *("architecture", "tag", "input_size", "fixed_input_size", "interpolation", "crop_pct", "crop_mode"),
    *(
        "mean",
        "std",
        "num_classes",
        "label_names",
        "label_descriptions",
        "first_conv",
        "classifier",
        "pool_size",
    ),
)


@dataclass(frozen=True, slots=True)
class Described:
    """A model of a hub.

    Attributes:
        model: `timm:NAME` or `hf:FOLDER`.
        by: who says so, in words.
        model_args: `key=value`, as a person would type them.
    """

    model: str
    by: str
    model_args: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the folder is read as it is, weights included."""
        return self.model.startswith("hf:")


def described_beside(path: Path) -> Described | None:
    """Return what the `config.json` of a folder, or beside a file, says; None without one of a known kind."""
    folder = path if path.is_dir() else path.parent
    config = _read(folder / "config.json")
    by = f"the config.json in '{folder}'"
    # A file of this name may be anybody's: timm's also say how images are prepared.
    if "architecture" in config and ("pretrained_cfg" in config or {"mean", "input_size"} <= config.keys()):
        return _of_timm(config, by)
    if "model_type" in config and (path.is_dir() or path.name in _OF_TRANSFORMERS):
        return Described(f"hf:{folder}", by)
    return None


def described_within(contents: Contents) -> Described | None:
    """Return what a checkpoint says of itself: metadata of safetensors, or what timm saves beside its tensors."""
    by = f"what '{contents.path}' says about itself"
    cfg = _parsed(contents.metadata.get("pretrained_cfg", ""))
    for key in _SAID_BY:
        name = contents.metadata.get(key) or contents.beside.get(key, "").strip("'") or cfg.get(key)
        if name in timm_names():
            return _of_timm({"architecture": name, "pretrained_cfg": cfg}, by)
    return None


def _of_timm(config: Mapping[str, Any], by: str) -> Described:
    # Older files have the cfg at the top.
    cfg = config["pretrained_cfg"] if isinstance(config.get("pretrained_cfg"), dict) else config
    said = {**{key: config[key] for key in ("num_classes", "label_names") if key in config}, **cfg}
    kept = {key: said[key] for key in _KEPT if said.get(key) is not None}
    own = config.get("model_args")
    args = {**own} if isinstance(own, dict) else {}
    args.pop("num_classes", None)  # the checkpoint has as many as it has
    if len(kept) > 1:  # more than its name
        args["pretrained_cfg"] = kept
    return Described(
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
