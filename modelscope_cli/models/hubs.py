"""Resolve model names of timm, transformers and other libraries. Standard library.

A library is imported only for its prefix (`timm:NAME`, `hf:owner/name`, `hf:./folder`). A checkpoint names its hub
model in its own metadata or in a `config.json` next to it.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.errors import UsageError, nearest, with_nearest
from modelscope_cli.models.names import model_names, models_in, timm_names

# The files that transformers reads in a folder; its `config.json` need not describe any other.
_OF_TRANSFORMERS = tuple(
    f"{name}{ending}" for name in ("model.safetensors", "pytorch_model.bin") for ending in ("", ".index.json")
)
NAME_KEYS = ("architecture", "arch", "model", "model_name")
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
    for key in NAME_KEYS:
        name = contents.metadata.get(key) or contents.beside.get(key, "").strip("'") or cfg.get(key)
        if name in timm_names():
            args = contents.settings.get("args", {})  # of timm's train.py
            written = {key: args[key] for key in ("in_chans", "img_size") if args.get(key)}
            return _of_timm({"architecture": name, "pretrained_cfg": cfg, "model_args": written}, by)
    return None


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
# Read by huggingface_hub and transformers when they are imported.
_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def split_query(model: str) -> tuple[str, tuple[str, ...]]:
    """Return a model without its `?encoder_name=resnet18&classes=3`, and these arguments."""
    name, _, query = model.partition("?")
    return (name, tuple(query.split("&"))) if query and ":" in name else (model, ())


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
    """Refuse a prefix whose library is not installed."""
    package = PACKAGES[prefix]
    if find_spec(package) is None:
        message = f"'{typed}' needs the package '{package}', which is not installed"
        raise UsageError(message, f"pip install {package}")


def is_in_timm(name: str) -> bool:
    """Tell whether timm is installed and has this architecture; a tag may follow the name."""
    return name.partition(".")[0] in timm_names()


@contextmanager
def hubs_closed(is_offline: bool) -> Iterator[None]:
    """Keep the hub libraries offline while open, whether or not they are imported yet."""
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


_ZOO = re.compile(r"(?:torchvision[./])?(?:models[./])?(?P<name>[\w -]+)(?:\(.*\))?")
_HUB = re.compile(r"(?P<owner>[\w-]+)/(?P<name>[\w.-]*[\d-][\w.-]*)")


def named_here(model: str) -> str | None:
    """Return the name used here for a model with an unknown name; None if it cannot be told."""
    letters = {_letters(name): name for name in model_names()}
    if (match := _ZOO.fullmatch(model)) and _letters(match["name"]) in letters:
        return letters[_letters(match["name"])]
    if is_in_timm(model):
        return f"timm:{model}"
    if (file := Path(f"{model}.py")).is_file() and (names := models_in(file)):
        return f"{file}:{names[0]}"
    module, _, attribute = model.rpartition(".")
    if module and Path(f"{module.replace('.', '/')}.py").is_file():
        return f"{module}:{attribute}"
    if (match := _HUB.fullmatch(model)) and not Path(match["owner"]).exists():
        return f"timm:{match['name']}" if match["owner"] == "timm" else f"hf:{model}"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


@dataclass(frozen=True, slots=True)
class Builder:
    """What builds the models of a library that has no weights here."""

    package: str  # as `pip install` names it
    spec: str  # `module:attr`
    args: Mapping[str, Any]  # arguments that are given unless others are typed
    classes: str = ""  # the argument for the number of classes; empty without one

    @property
    def _root(self) -> str:
        return self.spec.partition(":")[0].partition(".")[0]

    def check(self, model: str) -> None:
        """Refuse a library that is not installed, and a name that it does not have; nothing is imported."""
        found = find_spec(self._root)
        if found is None or found.origin is None:
            message = f"'{model}' needs the package '{self.package}', which is not installed"
            raise UsageError(message, f"pip install {self.package}")
        folder, prefix = Path(found.origin).parent, model.partition(":")[0]
        if self._root == "ultralytics":
            names = {file.stem for file in folder.glob("cfg/models/*/*.yaml")}
            plain = re.sub(r"(\d+)[nslmx](-.+)?$", r"\1\2", Path(self.args["cfg"]).stem)  # without its size
            if os.path.isfile(self.args["cfg"]) or {plain, Path(self.args["cfg"]).stem} & names:
                return
            files = {f"{name}.yaml" for name in names}
            raise _unknown(model, f"{plain}.yaml", files)
        names = set(re.findall(r"\.decoders\.\w+ import (\w+)", Path(found.origin).read_text()))
        if prefix == "open_clip":
            names = {file.stem for file in folder.glob("model_configs/*.json")}
        elif "DeepLabV3" in names:
            names.add("DeepLabV3Plus")
        name = model.partition(":")[2]
        if name not in names:
            raise _unknown(model, model, {f"{prefix}:{name}" for name in names})


def _unknown(model: str, word: str, known: set[str]) -> UsageError:
    near = nearest(word, known) or f"--model {min(known)}"
    return UsageError(with_nearest(f"unknown model '{model}'", word, known), near)


_YOLO = re.compile(
    r"(ultralytics:)?((?:yolo[\w-]*\d|rtdetr-)[\w-]*?(?:-(seg|cls|pose|obb))?)(?:\.yaml|\.pt)?"
)
# The classes of ultralytics that are built from a file's settings.
ULTRALYTICS = "ultralytics.nn.tasks:"
ULTRALYTICS_CLASSES = ("Detection", "Segmentation", "Pose", "OBB", "Classification", "RTDETRDetection")
_TASKS = {"seg": "Segmentation", "cls": "Classification", "pose": "Pose", "obb": "OBB"}
_OPEN_CLIP = re.compile(r"ViT-\w+-\d+[\w-]*|RN\d+(x\d+)?(-quickgelu)?")


def builder_of(model: str) -> Builder | None:
    """Return what builds `smp:NAME`, `open_clip:NAME`, `ultralytics:NAME` or `yolo11n.yaml`; None for others."""
    prefix, _, name = model.partition(":")
    if prefix == "smp" and name:
        spec = f"segmentation_models_pytorch:{name}"
        return Builder("segmentation-models-pytorch", spec, {"encoder_weights": None}, "classes")
    if prefix == "open_clip" and name and not name.startswith("create_model"):
        return Builder("open_clip_torch", "open_clip:create_model", {"model_name": name})
    yolo = _YOLO.fullmatch(Path(model).name)
    if yolo is None or not (prefix == "ultralytics" or model.endswith(".yaml")):
        return None
    kind = f"{_TASKS.get(yolo[3] or '', 'Detection')}Model"
    kind = kind if yolo[2].startswith("yolo") else "RTDETRDetectionModel"
    cfg = model if model.endswith(".yaml") and not yolo[1] else f"{yolo[2]}.yaml"
    return Builder("ultralytics", f"{ULTRALYTICS}{kind}", {"cfg": cfg, "verbose": False}, "nc")


# Prefixes of other libraries that have no names here, and the line that builds their models.
_LINES = {
    "torch.hub": "torch.hub:load --model-arg repo_or_dir={} --model-arg model=NAME",
    "torchvision": "{}",
    "transformers": "hf:{}",
    "monai": "monai.networks.nets:{}",
    "clip": "open_clip:{}",  # OpenAI writes ViT-B/32 where open_clip writes ViT-B-32
}


def of_other_library(model: str) -> UsageError | None:
    """Return the error for a model name of another library; None for any other name."""
    yolo = _YOLO.fullmatch(Path(model).name)
    prefix, _, name = model.partition(":")
    if yolo is not None:
        plain = re.sub(r"(v[35]u?[nslmx]6?)u$", r"\1", yolo[2])  # yolov5su has the head of yolov8
        is_file = model.endswith(".pt")
        what = f"there is no file '{model}'; {yolo[2]}" if is_file else f"'{model}'"
        line = f"{plain}.yaml   with random weights: weights are read from a file only"
        return UsageError(f"{what} is a model of ultralytics", f"--model {line}")
    if prefix in ("http", "https"):
        hint = f"curl -LO {shlex.quote(model)}"
        return UsageError(f"'{model}' is a URL, but models and weights are read from files", hint)
    if _OPEN_CLIP.fullmatch(model):
        return UsageError(f"'{model}' is a model of open_clip", f"--model open_clip:{shlex.quote(model)}")
    if name and prefix in _LINES:
        message = f"'{model}' is a model of {prefix} under another name"
        name = name.replace("/", "-") if prefix == "clip" else name
        if prefix == "torch.hub" and ":" in name:
            name, _, entry = name.partition(":")
            line = _LINES[prefix].format(shlex.quote(name)).replace("NAME", shlex.quote(entry))
            return UsageError(message, f"--model {line}")
        return UsageError(message, f"--model {_LINES[prefix].format(shlex.quote(name))}")
    return None
