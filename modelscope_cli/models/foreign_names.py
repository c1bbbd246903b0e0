"""A model by the name that other libraries give it, and what it is called here. Standard library only."""

import re
from pathlib import Path

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
