"""Models of ultralytics that were saved whole: built from the settings in their file, which is never unpickled.

The settings name the layers and their arguments. The builder of ultralytics calls whatever they name, and evaluates
the activation, so that both are checked before.
"""

import copy
import re
from typing import Any

import torch
from PIL import Image
from torch import nn

from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.architecture import Architecture, seeded
from modelscope_cli.models.request import ModelRequest, parse_model_args

_ACTIVATION = re.compile(r"(torch\.)?nn\.[A-Z]\w*\([\w=., -]*\)")


def ultralytics_architecture(request: ModelRequest) -> Architecture:
    """Describe the model in the settings of a checkpoint, see `Contents.settings`."""
    assert request.headers is not None
    settings, model_args = request.headers.contents.settings, parse_model_args(request.model_args)
    _check_layers(settings["yaml"], request)

    def make(num_classes: int | None) -> nn.Module:
        tasks = _library()[1]
        head = {} if num_classes is None else {"nc": num_classes}
        cfg = copy.deepcopy(settings["yaml"])
        with seeded(request.seed):
            module: Any = getattr(tasks, request.model.rpartition(":")[2])(
                cfg, verbose=False, **model_args, **head
            )
        names = settings["names"]
        module.names = dict(enumerate(names)) if isinstance(names, list) else names or module.names
        module.args = {"imgsz": settings["imgsz"]}
        return module

    return Architecture("import", request.model, "custom", make, takes_num_classes=True)


def _library() -> tuple[Any, Any]:
    """Return `modules` and `tasks` of ultralytics.

    Importing it replaces `Image.open` by one that installs a package when it meets a file that is not an image, and
    `torch.save`; both are put back.
    """
    opened, saved = Image.open, torch.save
    try:
        from ultralytics.nn import modules, tasks
    finally:
        Image.open, torch.save = opened, saved
    return modules, tasks


def _check_layers(cfg: Any, request: ModelRequest) -> None:
    import torchvision

    rooms = {"nn.": nn, "torchvision.ops.": torchvision.ops, "": _library()[0]}
    try:
        for name in [row[2] for part in ("backbone", "head") for row in cfg[part]]:
            room = next(prefix for prefix in rooms if name.startswith(prefix))
            layer = getattr(rooms[room], name[len(room) :], None)
            if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
                raise ValueError(f"'{name}' is not a layer of ultralytics")
        activation = cfg.get("activation")
        if activation is not None and not _ACTIVATION.fullmatch(activation):
            raise ValueError(f"'{activation}' is not an activation")
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else "they have another form"
        message = f"the settings in '{request.checkpoint}' do not describe a model of ultralytics: {reason}"
        raise CannotRunError(message, "--model FILE.py:NAME   that makes the model") from error
