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


# What is typed before a colon as if it were a hub: the package that it is of, what `pip install` calls that, and
# what builds a model of it without a download.
_HUBS = {
    **dict.fromkeys(
        ("smp", "segmentation_models_pytorch"),
        (
            *("segmentation_models_pytorch", "segmentation-models-pytorch"),
            "segmentation_models_pytorch:{} --model-arg encoder_weights=None",
        ),
    ),
    "open_clip": ("open_clip", "open_clip_torch", "open_clip:create_model --model-arg model_name={}"),
    **dict.fromkeys(
        ("torch.hub", "hub", "torchhub"),
        ("torch", "torch", "torch.hub:load --model-arg repo_or_dir={} --model-arg model=NAME"),
    ),
    **dict.fromkeys(("torchvision", "tv"), ("torchvision", "torchvision", "{}")),
    **dict.fromkeys(("transformers", "huggingface", "hf_hub"), ("transformers", "transformers", "hf:{}")),
    "monai": ("monai", "monai", "monai.networks.nets:{}"),
    "pytorchcv": ("pytorchcv", "pytorchcv", "pytorchcv.model_provider:get_model --model-arg name={}"),
}
_YOLO = re.compile(
    r"(?P<name>(?:yolo|rtdetr)[\w-]*\d[\w-]*?(?:-(?P<task>seg|cls|pose|obb))?)(?:\.yaml|\.pt)?"
)
_TASKS = {"seg": "Segmentation", "cls": "Classification", "pose": "Pose", "obb": "OBB"}
_OPEN_CLIP = re.compile(r"ViT-\w+-\d+[\w-]*|RN\d+(x\d+)?(-quickgelu)?")


def of_other_hub(model: str) -> UsageError | None:
    """Return the error for a name of another library that is written as one of a hub; None for any other."""
    prefix, colon, name = model.partition(":")
    if prefix == "ultralytics" and colon:
        return of_ultralytics(name)
    if not colon or prefix not in _HUBS or not name:
        return None
    package, pip, line = _HUBS[prefix]
    message = f"'{model}' is not a model by that name: {package} is not one of the hubs, timm: and hf:"
    return _needs(model, package, pip) or UsageError(message, f"--model {line.format(shlex.quote(name))}")


def of_ultralytics(model: str, checkpoint: str = "") -> UsageError | None:
    """Return the error for a model that ultralytics calls so, or for a file that it describes one in."""
    found = _YOLO.fullmatch(Path(model).name)
    if found is None:
        return None
    task = _TASKS.get(found["task"] or "", "Detection") if found["name"][0] == "y" else "RTDETRDetection"
    cfg = model if model.endswith(".yaml") else f"{found['name']}.yaml"
    hint = f"--model ultralytics.nn.tasks:{task}Model --model-arg {shlex.quote(f'cfg={cfg}')}{checkpoint}"
    message = f"'{model}' is a model of ultralytics, which is given by the class that builds it"
    return _needs(model, "ultralytics", "ultralytics") or UsageError(message, hint)


def of_open_clip(model: str, here: str | None) -> UsageError | None:
    """Return the error for a name that open_clip gives to a model; `here`: what it may be called otherwise."""
    if not _OPEN_CLIP.fullmatch(model):
        return None
    line = f"--model open_clip:create_model --model-arg model_name={model}"
    if here is None:
        return _needs(model, "open_clip", "open_clip_torch") or UsageError(
            f"'{model}' is a model of open_clip, which is given by the function that builds it", line
        )
    message = f"unknown model '{model}': did you mean that of open_clip, or {here}, which is another"
    return UsageError(message, f"{line} or --model {here}" if find_spec("open_clip") else f"--model {here}")


def _needs(model: str, package: str, pip: str) -> UsageError | None:
    if find_spec(package) is not None:
        return None
    return UsageError(
        f"'{model}' needs the package '{package}', which is not installed", f"pip install {pip}"
    )
