"""The subject of `check`: a model and its input, or a data set."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.errors import UsageError
from modelscope_cli.records.options import SHARED
from modelscope_cli.records.refusals import flags
from modelscope_cli.shell.call import CommandCall
from modelscope_cli.shell.named_model import names_learner, names_model, take_model

if TYPE_CHECKING:
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.rules.settings import CheckSettings


def subject(call: CommandCall, settings: "CheckSettings") -> tuple["ModelRequest", list[str]]:
    """Return the model and the images of the command line, else those of the project.

    The first word is the model, or an image where --model or the project names the model. The weights are checked
    later.
    """
    from modelscope_cli.models.check_request import check_request
    from modelscope_cli.models.request import weights_file

    def is_model(word: str) -> bool:
        if call["model"] is not None:
            return names_model(word)
        is_alone = settings.model is None and not any(map(names_model, call["images"] or ()))
        return is_alone or names_learner(word)

    arguments = call["first"], call["images"], call["model"]
    model, images = take_model("check", *arguments, default=settings.model, is_model=is_model)
    if not images and not call["input_shape"]:
        images = list(settings.images)
    request = call.model(model, is_checked=False)
    if model == settings.model and not {"weights", "checkpoint"} & call.changed.keys():
        request = replace(request, checkpoint=settings.checkpoint)
    return (check_request(request) if weights_file(request) is None else request), images


def data_set(call: CommandCall, settings: "CheckSettings") -> list[str]:
    """Return the arguments that name a data set; empty to check a model.

    It is a data set if --against is given, if all selected rules are about data sets, or if the first argument is a
    folder or a list, and neither the command line nor the project names a model.
    """
    words = [word for word in (call["first"], *(call["images"] or ())) if word is not None]
    is_selected = bool(settings.select) and all(code.upper().startswith("MS8") for code in settings.select)
    has_model = call["model"] is not None or settings.model is not None
    if not (call["against"] or is_selected or (words and not has_model and is_data_set(words[0]))):
        return []
    of_models = {*SHARED["Model"], *SHARED["Input"], "out", "resume"}
    for name in (name for name in call.changed if name in of_models):
        option = flags("check", name, call[name])
        raise UsageError(f"'{option}' is for models, but a data set is checked here", f"leave out {option}")
    if not words:
        raise UsageError("missing argument: the folder of images", "modelscope check IMAGES")
    return words


def is_data_set(word: str) -> bool:
    """Tell whether this is a folder of images or a list; with weights or a config it is a model."""
    from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES

    if word.startswith("@"):
        return os.path.exists(word[1:])
    if not os.path.isdir(word):
        return False
    names = [Path(name.lower()) for name in os.listdir(word)]
    return not any(name.name == "config.json" or name.suffix in CHECKPOINT_SUFFIXES for name in names)
