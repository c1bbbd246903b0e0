"""Load the requested model onto its device and in its dtype."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from modelscope_cli.checkpoints.tensors import file_sha256
from modelscope_cli.devices import resolve_device
from modelscope_cli.errors import CannotRunError, UsageError, failed_device
from modelscope_cli.inputs.model_config import configured_labels, configured_preset
from modelscope_cli.lean import collect_new_garbage
from modelscope_cli.models.architecture import Architecture, inside_notes, model_inside
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.fit import listed
from modelscope_cli.models.from_libraries import LIBRARIES
from modelscope_cli.models.hubs import close_hubs, split_hub
from modelscope_cli.models.importspec import imported_architecture, saved_architecture, user_code_failed
from modelscope_cli.models.initialise import Filled, fill_from_checkpoint, fill_pretrained, fill_randomly
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.model_of_checkpoint import recognise
from modelscope_cli.models.request import (
    ModelRequest,
    is_checkpoint,
    is_exported,
    is_import,
    is_program,
    parse_model_args,
)
from modelscope_cli.models.zoo import (
    WeightsEnum,
    choose_weights,
    default_weights,
    is_quantized,
    zoo_architecture,
)
from modelscope_cli.records.naming import dtype_name, some
from modelscope_cli.records.run import ModelInfo, Notice, WeightsInfo
from modelscope_cli.synonyms import meaning

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `name`: float32, bfloat16 or float16."""
    try:
        return _DTYPES[name.lower()]
    except KeyError as error:
        message = f"'{name}' is not a dtype that models run in: {', '.join(_DTYPES)}"
        raise UsageError(message, f"--dtype {meaning(name, _DTYPES) or 'float32'}") from error


def load_model(request: ModelRequest) -> LoadedModel:
    """Build the requested model and give it its weights."""
    collect_new_garbage()
    close_hubs(is_offline=request.is_offline)
    if is_program(request.model):
        return _load_program(check_request(request))
    request, recognised = recognise(check_request(request))
    dtype = resolve_dtype(request.dtype)
    architecture, weights = _find(request)
    device, device_note = _device_for(request, weights)
    prefix, name = split_hub(request.model)
    if request.checkpoint is not None:
        filled = fill_from_checkpoint(architecture, request, request.checkpoint)
    elif prefix and request.weights.lower() != "none":
        filled = LIBRARIES[prefix].fill(architecture, request, name)
    elif weights is not None:
        filled = fill_pretrained(architecture, request, weights)
    else:
        filled = fill_randomly(architecture, request)
    notes = (*recognised, *filled.notes, *([device_note] if device_note else []))
    loaded = _placed(architecture, replace(filled, notes=notes), device, dtype, weights)
    return replace(loaded, weights_file=request.checkpoint)


def load_skeleton(request: ModelRequest) -> LoadedModel:
    """Build the requested model on the meta device: its shapes without its values, in no memory.

    Pretrained weights are not needed; a checkpoint is checked and gives the number of classes. A model that cannot
    be built on meta is built on the CPU, with a warning `meta_fallback`.
    """
    collect_new_garbage()
    close_hubs(is_offline=request.is_offline)
    if is_program(request.model):
        return _load_program(check_request(request), has_values=False)
    request, recognised = recognise(check_request(request))
    if request.device.lower() != "auto":
        resolve_device(request.device)
    dtype = resolve_dtype(request.dtype)
    architecture, weights = _find(request)
    if not architecture.is_instance:
        try:
            filled = _fill_skeleton(architecture.on_meta(), request)
            resolved = request.checkpoint.name if request.checkpoint else "random"
            info = WeightsInfo(request.weights, resolved, "meta")  # no values were made or read
            filled = replace(
                filled, weights=info, notes=(*recognised, *(filled.notes if request.checkpoint else ()))
            )
            return _placed(architecture, filled, torch.device("meta"), dtype, weights)
        except UsageError:
            raise
        except Exception as error:  # constructors may raise anything on meta tensors
            reason = (
                error.message if isinstance(error, CannotRunError) else f"{type(error).__name__}: {error}"
            )
    else:
        reason = f"'{request.model}' is a module already built"
    filled = _fill_skeleton(architecture, request)
    notice = Notice("meta_fallback", f"not built on the meta device: {reason.splitlines()[0]}")
    filled = replace(filled, notes=(*recognised, *filled.notes), warnings=(notice, *filled.warnings))
    return _placed(architecture, filled, torch.device("cpu"), dtype, weights)


def _load_program(request: ModelRequest, *, has_values: bool = True) -> LoadedModel:
    if is_exported(request.model):
        from modelscope_cli.models.exported import load_program  # with the scanner of files

        return load_program(Path(request.model))
    from modelscope_cli.models.onnx_net import load_onnx  # with NumPy

    path = Path(request.model)
    net = load_onnx(path, has_values=has_values)
    weights = WeightsInfo(request.weights, path.name, "file", file_sha256(path))
    norms = [node.module or node.name for node in net.model.nodes if node.normalises_by_batch]
    message = f"exported in training mode, so that batch norms normalise by the batch: {some(norms)}"
    return LoadedModel(
        module=net,
        info=ModelInfo("onnx", request.model, "OnnxNet", weights),
        device=torch.device("cpu"),
        dtype=torch.float32,
        family="custom",
        transforms=None,
        categories=None,
        notes=net.notes,
        warnings=(Notice("onnx_training_mode", message),) if norms else (),
    )


def _find(request: ModelRequest) -> tuple[Architecture, WeightsEnum | None]:
    """Return the architecture to build and the torchvision weights, if any."""
    model_args = parse_model_args(request.model_args)
    prefix, name = split_hub(request.model)
    if prefix:
        return LIBRARIES[prefix].describe(request, name), None
    if is_checkpoint(request.model):
        return saved_architecture(request.model), None
    if not is_import(request.model):
        name = request.model.lower()
        weights = choose_weights(name, request.weights)
        return zoo_architecture(name, weights or default_weights(name), model_args, request.seed), weights
    if request.weights.lower() not in ("auto", "none"):
        message = f"'{request.model}' is not a torchvision model, so it has no weights '{request.weights}'"
        hint = f"leave out --weights {request.weights}   --checkpoint FILE gives it some"
        raise UsageError(message, hint)
    return imported_architecture(request.model, model_args, request.seed), None


def _device_for(request: ModelRequest, weights: WeightsEnum | None) -> tuple[torch.device, str | None]:
    """Resolve the device; quantized weights run on the CPU only."""
    if weights is None or not is_quantized(weights) or request.checkpoint is not None:
        return resolve_device(request.device)
    if request.device.lower() == "auto":
        return torch.device("cpu"), "device: cpu (auto; quantized weights run only on the CPU)"
    device, _ = resolve_device(request.device)
    if device.type != "cpu" or request.dtype.lower() != "float32":
        message = f"quantized weights '{weights.name}' run on cpu in float32 only"
        request_note = f"not on '{request.device}' in '{request.dtype}'"
        raise CannotRunError(f"{message}, {request_note}", "--device cpu --dtype float32")
    return device, None


def _fill_skeleton(architecture: Architecture, request: ModelRequest) -> Filled:
    if request.checkpoint is not None:
        return fill_from_checkpoint(architecture, request, request.checkpoint)
    return fill_randomly(architecture, request)


def _placed(
    architecture: Architecture,
    filled: Filled,
    device: torch.device,
    dtype: torch.dtype,
    weights: WeightsEnum | None,
) -> LoadedModel:
    """Move the module to its device and dtype, and describe it."""
    name = architecture.name
    module = inner = model_inside(filled.module, name)
    built = next((one.dtype for one in module.parameters() if one.is_floating_point()), dtype)
    is_cast = built != dtype == torch.float32
    cast = (f"built in {dtype_name(built)}, run in float32, the default dtype",)
    try:
        with suppress(NotImplementedError):  # an exported program has one mode
            module.train(False)
        module = _moved(module, device, dtype)
    except CannotRunError:
        raise
    except Exception as error:  # out of memory, or any exception of a user's module
        raise _not_placed(name, module, device, error) from error
    is_zoo = architecture.source == "zoo"
    transforms = (weights or default_weights(name)).transforms() if is_zoo else configured_preset(module)
    has_labels = filled.categories is None and not is_zoo and filled.weights.resolved != "random"
    return LoadedModel(
        module=module,
        info=ModelInfo(architecture.source, name, type(module).__name__, filled.weights),
        device=device,
        dtype=dtype,
        family=architecture.family if is_zoo else family_of_module(module),
        transforms=transforms,
        categories=configured_labels(module) if has_labels else filled.categories,
        notes=(*filled.notes, *cast * is_cast, *inside_notes(filled.module, inner)),
        warnings=filled.warnings,
        image_size=filled.image_size,
    )


def _moved(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return a module on the device, its real numbers in the dtype, its complex ones as they are."""
    tensors = [*module.parameters(), *module.buffers()]
    is_complex = any(tensor.is_complex() for tensor in tensors)
    others = [one for one in tensors if one.is_floating_point() and one.dtype != dtype]
    if others and not is_complex:
        return module.to(device=device, dtype=dtype)
    for tensor in others:
        tensor.data = tensor.data.to(dtype)
    return module.to(device)


def family_of_module(module: nn.Module) -> str:
    """Return the family of a torchvision model; `custom` for all others."""
    *_, family, _ = ("", "", *type(module).__module__.split("."))
    is_torchvision = type(module).__module__.startswith("torchvision.models.")
    is_kind = family in ("detection", "video", "optical_flow", "segmentation")
    return family if is_torchvision and is_kind else "custom"


def _not_placed(name: str, module: nn.Module, device: torch.device, error: Exception) -> CannotRunError:
    tensors = (*module.named_parameters(), *module.named_buffers())
    empty = [key for key, tensor in tensors if tensor.is_meta]
    if empty and device.type != "meta":
        message = f"'{name}' has tensors on the meta device, which have no values: {listed(empty, 3)}"
        hint = "give them values where it is built: model.to_empty(device='cpu'), then model.load_state_dict(...)"
        return CannotRunError(message, hint)
    failed = failed_device(error)
    if device.type in ("cpu", "meta") and failed is None:
        return user_code_failed(f"moving '{name}' to '{device}'", error)
    reason = failed[0] if failed else str(error).partition("\n")[0]
    return CannotRunError(f"'{name}' cannot be moved to '{device}': {reason}", "--device cpu")
