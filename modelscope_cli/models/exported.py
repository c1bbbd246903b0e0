"""Load a torch.export program (`.pt2`), whose file is scanned before anything of it is loaded."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modelscope_cli.checkpoints.entries import TORCH_EXPORT
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.safety.scan import scan_file
from modelscope_cli.checkpoints.tensors import file_sha256
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.naming import dtype_name, some
from modelscope_cli.records.run import ModelInfo, Notice, WeightsInfo
from modelscope_cli.records.weights import KNOWN

_SIDE = 224  # where the program takes any
# Operators that compute otherwise in train mode: the positions of the argument that says so, and of one without
# which they do not (running statistics, a probability).
_OF_TRAINING = {"aten.batch_norm.default": (5, 3), "aten.dropout.default": (2, 1)}


def load_program(path: Path) -> LoadedModel:
    """Load a torch.export program whose file holds nothing that runs when it is loaded."""
    contents = read_contents(path)
    safety = scan_file(path)
    if safety.rank != KNOWN:
        call = f"torch.export.load({str(path)!r})"
        message = f"'{path}' may run code when it is loaded ({safety.rank}), so it is not loaded"
        trusted = f"only if you trust it: FILE.py:NAME, a function there that returns {call}.module()"
        raise CannotRunError(
            message, f"modelscope weights --scan {shlex.quote(str(path))}   shows it; {trusted}"
        )
    if contents.format != TORCH_EXPORT:
        message = f"'{path}' is not a torch.export program but {contents.format}"
        raise CannotRunError(message, f"modelscope weights {shlex.quote(str(path))}")
    try:
        program = torch.export.load(path)
    except Exception as error:  # of another version of torch, damaged, with operators that are not registered
        reason = in_one_line(error, 200)
        message = f"torch {torch.__version__} cannot load '{path}': {type(error).__name__}: {reason}"
        raise CannotRunError(message, "export it again with this version of torch") from error
    weights = WeightsInfo(str(path), path.name, "file", file_sha256(path))
    loaded = with_layers(program, ModelInfo("pt2", str(path), "ExportedProgram", weights))
    return replace(loaded, weights_file=path)


def with_layers(program: Any, info: ModelInfo) -> LoadedModel:
    """Return a program as a model with the layers it was exported from, on its device and in its dtype."""
    module: Any = torch.export.unflatten(program)
    module.adapted = True  # else torch prints how other arguments differ from those of the export
    inputs = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.name in program.graph_signature.user_inputs and isinstance(node.meta["val"], torch.Tensor)
    ]
    # For noise; the first size is not a number if the program takes any batch
    module.exported_shapes = [
        (*one.shape[:1], *(size if type(size) is int else _SIDE for size in one.shape[1:])) for one in inputs
    ]
    module.takes_any_size = any(type(size) is not int for one in inputs for size in one.shape[1:])
    module.exported_dtypes = [None if one.is_floating_point() else dtype_name(one.dtype) for one in inputs]
    kinds = ((node, _OF_TRAINING.get(str(node.target), ())) for node in program.graph.nodes)
    module.in_train_mode = [node.name for node, at in kinds if at and all(node.args[n] for n in at)]
    words = f"exported in train mode: {some(module.in_train_mode, 3)} computes as in training"
    notices = (Notice("pt2_train_mode", words),) if module.in_train_mode else ()
    tensor = next((t for t in module.state_dict().values() if t.is_floating_point()), torch.empty(0))
    return LoadedModel(module, info, tensor.device, tensor.dtype, "custom", None, None, warnings=notices)
