"""A model by the name that other libraries give it, and what it is called here. Standard library only."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

from modelscope_cli.errors import UsageError
from modelscope_cli.models.file_models import models_in
from modelscope_cli.models.hubs import is_in_timm
from modelscope_cli.models.names import model_names

_ZOO = re.compile(r"(?:torchvision[./])?(?:models[./])?(?P<name>[\w -]+)(?:\(.*\))?")
_HUB = re.compile(r"(?P<owner>[\w-]+)/(?P<name>[\w.-]*[\d-][\w.-]*)")


def named_here(model: str) -> str | None:
    """Return what a model that is unknown by this name is called here; None where that is anybody's guess."""
    letters = {_letters(name): name for name in model_names()}
    if (found := _ZOO.fullmatch(model)) and _letters(found["name"]) in letters:
        return letters[_letters(found["name"])]
    if is_in_timm(model):
        return f"timm:{model}"
    if (file := Path(f"{model}.py")).is_file() and (names := models_in(file)):
        return f"{file}:{names[0]}"
    module, _, attribute = model.rpartition(".")
    if module and Path(f"{module.replace('.', '/')}.py").is_file():
        return f"{module}:{attribute}"
    if (found := _HUB.fullmatch(model)) and not Path(found["owner"]).exists():
        return f"timm:{found['name']}" if found["owner"] == "timm" else f"hf:{model}"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


# What is typed before a colon as if it were a hub: what `pip install` calls its package, and what builds a model of
# it without a download.
_HUBS = {
    "smp": ("segmentation-models-pytorch", "segmentation_models_pytorch:{} --model-arg encoder_weights=None"),
    "open_clip": ("open_clip_torch", "open_clip:create_model --model-arg model_name={}"),
    "torch.hub": ("torch", "torch.hub:load --model-arg repo_or_dir={} --model-arg model=NAME"),
    "torchvision": ("torchvision", "{}"),
    "transformers": ("transformers", "hf:{}"),
}
_YOLO = re.compile(r"(ultralytics:)?((?:yolo|rtdetr)[\w-]*\d[\w-]*?(?:-(seg|cls|pose|obb))?)(?:\.yaml|\.pt)?")
_TASKS = {"seg": "Segmentation", "cls": "Classification", "pose": "Pose", "obb": "OBB"}
_OPEN_CLIP = re.compile(r"ViT-\w+-\d+[\w-]*|RN\d+(x\d+)?(-quickgelu)?")


def of_other_library(model: str) -> UsageError | None:
    """Return the error for a name that another library gives to a model; None for any other."""
    found = _YOLO.fullmatch(Path(model).name)
    if found is not None:
        name, task = found[2], _TASKS.get(found[3] or "", "Detection")
        cfg = shlex.quote(f"cfg={model if model.endswith('.yaml') else f'{name}.yaml'}")
        kind = f"{task}Model" if name.startswith("yolo") else "RTDETRDetectionModel"
        return _built_by(model, "ultralytics", f"ultralytics.nn.tasks:{kind} --model-arg {cfg}")
    prefix, _, name = ("open_clip", ":", model) if _OPEN_CLIP.fullmatch(model) else model.partition(":")
    if not name or prefix not in _HUBS:
        return None
    package, line = _HUBS[prefix]
    return _built_by(model, package, line.format(shlex.quote(name)))


def _built_by(model: str, package: str, line: str) -> UsageError:
    root = "torch" if package == "torchvision" else line.partition(":")[0].partition(".")[0]
    if ":" in line and not line.startswith("hf:") and find_spec(root) is None:
        message = f"'{model}' needs the package '{root}', which is not installed"
        return UsageError(message, f"pip install {package}")
    message = f"'{model}' is a model of {package} by a name that is not used here"
    return UsageError(message, f"--model {line}")
