"""Fill an architecture: at random, with pretrained weights, or from a checkpoint."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modelscope_cli.checkpoints.tensors import Checkpoint, file_sha256, read_checkpoint, read_torch_file
from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError
from modelscope_cli.models.architecture import Architecture, model_inside
from modelscope_cli.models.fit import classes_of, listed, load_state, nonfinite_weights, strip_prefixes
from modelscope_cli.models.request import ModelRequest, parse_model_args
from modelscope_cli.models.zoo import (
    WeightsEnum,
    WeightsUnavailableError,
    build_pretrained,
    find_weights,
    is_quantized,
    promised_hash,
)
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.run import Notice, WeightsInfo


def graft(pretrained: nn.Module, fresh: nn.Module) -> list[str]:
    """Move into `pretrained` the modules of `fresh` whose tensors have other shapes; return their names.

    `fresh` is the same architecture built for the wanted number of classes. Nothing else changes, except plain
    integers such as `num_classes`, by which heads reshape their output.
    """
    moved: list[str] = []
    layers = dict(fresh.named_modules(remove_duplicate=False))
    for path, old in list(pretrained.named_modules()):
        if (new := layers.get(path)) is None:
            continue
        if _differ(_own_shapes(old), _own_shapes(new)):
            pretrained.set_submodule(path, new)
            moved += [f"{path}.{name}" for name, _ in new.named_parameters()]
        else:
            vars(old).update({name: value for name, value in vars(new).items() if type(value) is int})
    return moved


def _own_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _differ(old: dict[str, tuple[int, ...]], new: dict[str, tuple[int, ...]]) -> bool:
    """Compare only shared names: a frozen batch norm has no batch counter, but is not a head."""
    return any(old[name] != new[name] for name in old.keys() & new.keys())


@dataclass(frozen=True, slots=True)
class Filled:
    """A module with its values, their origin, notes and warnings."""

    module: nn.Module
    weights: WeightsInfo
    categories: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[Notice, ...] = ()
    image_size: int | None = None  # on which the weights were trained, if their file says so


def fill_randomly(architecture: Architecture, request: ModelRequest) -> Filled:
    """Build with the architecture's own seeded initialisation.

    A factory may have loaded weights, so its result is not called random.
    """
    module = build(architecture, request.num_classes)
    if architecture.is_factory:
        weights_info = WeightsInfo(
            request.weights, "own", f"as set by {architecture.name.rpartition(':')[2]}"
        )
        return Filled(module, weights_info, notes=(f"weights: {weights_info.origin} (seed {request.seed})",))
    origin = "the model's own initialisation" if architecture.source == "import" else "seeded random"
    weights = WeightsInfo(request.weights, "random", origin)
    return Filled(module, weights, notes=(f"weights: random ({weights.origin}, seed {request.seed})",))


def fill_without(
    architecture: Architecture, request: ModelRequest, error: WeightsUnavailableError, kind: str = ""
) -> Filled:
    """Build with random values if `auto` weights are unavailable; raise `error` if they are needed."""
    if request.weights.lower() != "auto" or request.needs_weights:
        raise error
    filled = fill_randomly(architecture, request)
    message = f"'{architecture.name}' has random weights{kind}, so its numbers mean little: {error.message}"
    return Filled(filled.module, filled.weights, warnings=(Notice("random_weights", message),))


def fill_pretrained(architecture: Architecture, request: ModelRequest, weights: WeightsEnum) -> Filled:
    """Build with torchvision's `weights`; with `auto`, randomly if their file is unavailable."""
    _check_num_classes(architecture, request.num_classes)
    if request.num_classes is not None and is_quantized(weights):
        message = (
            f"weights '{weights.name}' are quantized and cannot take --num-classes {request.num_classes}"
        )
        raise UsageError(message, f"--model {architecture.name} --weights none")
    try:
        path, origin = find_weights(weights, offline=request.is_offline, progress=request.progress)
    except WeightsUnavailableError as error:
        return fill_without(
            architecture, request, error, " and is not quantized" if is_quantized(weights) else ""
        )
    state, sha256 = _read_weights(path)
    try:
        module = build_pretrained(architecture.name, weights, state, parse_model_args(request.model_args))
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CannotRunError(
            f"cannot load weights '{path}': {reason}", f"rm {shlex.quote(str(path))}"
        ) from error
    where = f"from the cache, {path}" if origin == "cache" else f"downloaded to {path}"
    notes = [f"weights: {weights.name} ({request.weights}; {where})"]
    categories = tuple(weights.meta["categories"]) if "categories" in weights.meta else None
    if request.num_classes is not None and (fresh := graft(module, build(architecture, request.num_classes))):
        notes.append(f"num classes: {request.num_classes}, {listed(fresh)} random (seed {request.seed})")
        categories = None
    info = WeightsInfo(request.weights, weights.name, origin, sha256)
    return Filled(module, info, categories, tuple(notes), nonfinite_weights(module))


def fill_from_checkpoint(architecture: Architecture, request: ModelRequest, path: Path) -> Filled:
    """Build to fit the checkpoint at `path` and load it; a meta architecture is only checked."""
    headers = request.headers_of(path)
    checkpoint = read_checkpoint(path, request.key, headers.contents if headers is not None else None)
    # Library models can be tried on meta; building user code may be expensive.
    on_trial = architecture.on_meta() if architecture.source in ("zoo", "timm") else architecture
    trial = build(on_trial, request.num_classes)
    state, prefix_note = strip_prefixes(checkpoint.state, model_inside(trial, architecture.name))
    notes = [*checkpoint.notes, *([prefix_note] if prefix_note else [])]
    num_classes = _classes_in(state, trial, on_trial, request)
    if num_classes is not None:
        no_head = "head: none in the checkpoint, so the output is features, not class scores"
        notes.append(f"num classes: {num_classes}, as in the checkpoint" if num_classes else no_head)
    wanted = request.num_classes if num_classes is None else num_classes
    is_final = on_trial is architecture and num_classes is None
    module = trial if is_final else architecture.build(wanted)
    dtypes = {dtype_name(tensor.dtype) for tensor in state.values() if tensor.is_floating_point()}
    if dtypes - {"float32"}:
        notes.append(f"checkpoint: holds {', '.join(sorted(dtypes))}, loaded into float32")
    if any(parameter.is_meta for parameter in module.parameters()):
        for key in state:
            state[key] = state[key].to("meta")
    share, warnings = load_state(
        state, model_inside(module), strict=request.is_strict, name=architecture.name, file=str(path)
    )
    categories, category_warnings = _categories(checkpoint)
    if categories and request.num_classes not in (None, len(categories)):
        categories = None  # the checkpoint's labels do not fit a fresh head
    info = WeightsInfo(str(path), share + path.name, "checkpoint", checkpoint.sha256)
    warnings += checkpoint.warnings + category_warnings + nonfinite_weights(module)
    return Filled(module, info, categories, tuple(notes), warnings, checkpoint.image_size)


def build(architecture: Architecture, num_classes: int | None) -> nn.Module:
    """Build an architecture; `num_classes` None keeps its default."""
    _check_num_classes(architecture, num_classes)
    return architecture.build(num_classes)


def _check_num_classes(architecture: Architecture, num_classes: int | None) -> None:
    if num_classes is not None and not architecture.takes_num_classes:
        message = f"'{architecture.name}' does not take --num-classes {num_classes}"
        raise UsageError(message, f"leave out --num-classes {num_classes}")


def _classes_in(
    state: dict[str, torch.Tensor], trial: nn.Module, architecture: Architecture, request: ModelRequest
) -> int | None:
    """Return the number of classes with which the architecture fits `state`, if only that differs and no other was
    requested."""
    if not architecture.takes_num_classes:
        return None
    if (
        architecture.source == "timm"
        and request.num_classes is None
        and _is_headless(state, trial, architecture)
    ):
        return 0
    for num_classes in classes_of(state, trial):
        try:
            rebuilt = architecture.build(num_classes)
        except ModelscopeError:  # `**kwargs` accepted the argument, but the code did not
            return None
        if not classes_of(state, rebuilt):
            if request.num_classes is None:
                return num_classes
            if request.is_strict:
                has = f"has {num_classes} classes, not '{request.num_classes}'"
                hint = f"--num-classes {num_classes} or --no-strict   for a fresh head"
                raise CannotRunError(f"checkpoint '{request.checkpoint}' {has}", hint)
    return None


def _is_headless(state: dict[str, torch.Tensor], trial: nn.Module, architecture: Architecture) -> bool:
    """Tell whether only the head is missing in a checkpoint: timm builds without one for 0 classes."""

    def weights_of(tensors: dict[str, torch.Tensor]) -> set[str]:
        return {name for name in tensors if not name.endswith("num_batches_tracked")}

    has_less = bool(weights_of(trial.state_dict()) - weights_of(state))
    return has_less and weights_of(architecture.build(0).state_dict()) == weights_of(state)


def _read_weights(path: Path) -> tuple[Any, str]:
    """Read a file of torch's cache, checking the hash in its name."""
    sha256 = file_sha256(path)
    promised = promised_hash(path)
    if promised and not sha256.startswith(promised):
        sums = f"their sha256 is {sha256[: len(promised)]}, expected {promised}"
        message = f"weights '{path}' are damaged: {sums}"
        raise CannotRunError(message, f"rm {shlex.quote(str(path))}")
    try:
        return read_torch_file(path), sha256
    except CannotRunError as error:
        raise CannotRunError(
            error.message.replace("checkpoint '", "weights '", 1), f"rm {shlex.quote(str(path))}"
        ) from error


def _categories(checkpoint: Checkpoint) -> tuple[tuple[str, ...] | None, tuple[Notice, ...]]:
    text = checkpoint.metadata.get("categories")
    if text is None:
        return checkpoint.class_names, ()
    try:
        labels = json.loads(text)
    except json.JSONDecodeError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        where = f"'categories' in the metadata of '{checkpoint.path}'"
        message = f"{where} is not a JSON list of names and is ignored"
        return None, (Notice("bad_categories", message),)
    return tuple(labels), ()
