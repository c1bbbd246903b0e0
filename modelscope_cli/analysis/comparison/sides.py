"""The two sides of `diff`: loaded, passed from Python or copied."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from modelscope_cli.analysis.comparison.programs import program_of
from modelscope_cli.analysis.comparison.request import (
    BSettings,
    Source,
    WeightsFile,
    holds_weights,
    refuse_given,
)
from modelscope_cli.analysis.subject import describe_module
from modelscope_cli.checkpoints.entries import TORCH_SCRIPT, in_order
from modelscope_cli.checkpoints.tensors import read_checkpoint, unwrap_state
from modelscope_cli.devices import resolve_device
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.layers import refuse_layouts
from modelscope_cli.hooks.torch_private import is_compiled
from modelscope_cli.inputs.model_config import natural_shapes
from modelscope_cli.inputs.python_inputs import PythonInputs
from modelscope_cli.models.architecture import Architecture, copied
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.exported import load_program, with_layers
from modelscope_cli.models.initialise import fill_from_checkpoint
from modelscope_cli.models.load import load_model, load_skeleton, resolve_dtype
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.onnx_net import OnnxNet
from modelscope_cli.models.request import Model, ModelRequest, as_request, is_exported, is_onnx, is_program
from modelscope_cli.models.weights_file import is_script
from modelscope_cli.records.diff import DiffSide
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.progress import Progress, tell
from modelscope_cli.records.run import ModelInfo, Notice, WeightsInfo


def sources_handed_over(
    a: "Model", b: "Model | None", settings: ModelRequest, of_b: BSettings, model: str | None, *, is_run: bool
) -> tuple[Source, Source]:
    """Return A and B if at least one of them is a module of the caller.

    In a run, a checkpoint on the other side is loaded into a copy of the module, or into `model`; without a run its
    tensors are compared. If B is None or the same module, it is a copy of A with B's settings, because one module
    cannot be in two states at once.
    """
    a, b = _as_module(a), _as_module(b)
    for side in (a, b):
        if isinstance(side, Mapping) and is_run:
            message = "a dict of weights cannot run: without inputs, its tensors are compared"
            raise UsageError(message, "model.load_state_dict(weights)   and give the model")
        if side is not None and not isinstance(side, str | Mapping) and not _is_handed(side):
            as_request(side, {})  # raises for anything but a model
    if isinstance(b, nn.Module) and is_compiled(b):
        message = "B is compiled by torch.compile, so its layers are not visible"
        raise UsageError(message, "torch.testing.assert_close(b(x), a(x))   compares the outputs")
    is_named = isinstance(b, str) and not holds_weights(b)
    if not is_run and not is_named:
        refuse_given({"--b-seed": of_b.seed}, "needs a run, but there is no input", "give inputs")
    if b is None and isinstance(a, Mapping):
        message = "there is nothing to compare the dict of weights with"
        raise UsageError(message, "give another dict or a file as b")
    if _is_handed(a) and (b is None or b is a):
        return _same_module(_described(a), of_b, settings)
    module_side = next((_described(side) for side in (a, b) if _is_handed(side)), None)

    def source(side: Any, side_settings: BSettings) -> Source:
        loading = replace(side_settings, mode=None, seed=None).typed()
        if isinstance(side, str) and is_run and is_program(side):
            reason = f"does not apply to '{side}', which is an exported model"
            refuse_given(loading, reason, "")
            return check_request(ModelRequest(side, seed=settings.seed))
        if _is_handed(side):
            reason = "needs a model given by name, but B is a module"
            refuse_given(loading, reason, "change the module yourself")
            return _described(side)
        if isinstance(side, Mapping):
            return side
        is_file = holds_weights(side)
        if is_file and not is_run:
            reason = "applies to models, but without an input the checkpoint's tensors are compared"
            refuse_given({**loading, "--b-key": None}, reason, "give inputs=")
            return WeightsFile(Path(side), side_settings.key or settings.key)
        if is_file:
            values = {"--b-weights": side_settings.weights, "--b-checkpoint": side_settings.checkpoint}
            refuse_given(values, f"and '{side}' both give weights for B", "leave out one of them")
        if is_file and model is None and module_side is not None:
            return _varied(module_side, Path(side), side_settings, settings)
        names = {"model": model, "checkpoint": Path(side)} if is_file else {"model": side}
        chosen: dict[str, Any] = {
            name: value
            for name in ("weights", "checkpoint", "key", "device", "dtype", "seed")
            if (value := getattr(side_settings, name)) is not None
        }
        return check_request(replace(settings, **{**names, **chosen}))

    return source(a, BSettings()), source(b, of_b)


def _same_module(ours: LoadedModel, of_b: BSettings, settings: ModelRequest) -> tuple[Source, Source]:
    if not any(replace(of_b, seed=None).typed().values()) and of_b.seed is None:
        problem = f"there is nothing to compare '{ours.info.name}' with"
        message = f"{problem}: B is the same module under the same settings"
        raise UsageError(
            message, "give another module or a file as b, or a setting such as b_dtype='bfloat16'"
        )
    refuse_given({"--b-weights": of_b.weights}, "needs a model given by name", "b_checkpoint='FILE'")
    return ours, _varied(ours, of_b.checkpoint, of_b, settings)


def _as_module(side: Any) -> Any:
    """Turn a torch.export program into a model; return anything else unchanged."""
    kind, library = type(side).__name__, type(side).__module__.partition(".")[0]
    if kind == "ExportedProgram" and library == "torch":
        info = ModelInfo("object", kind, kind, WeightsInfo("object", "object", "handed over"))
        return with_layers(side, info)
    return side


def is_quantised(module: nn.Module) -> bool:
    """Tell whether a model computes with weights that torch, torchao or an exporter made integers of."""
    is_in_file = isinstance(module, OnnxNet) and module.model.is_quantised
    kinds = {type(one).__module__ for one in (*module.parameters(), *module.modules())}
    return is_in_file or any(kind.startswith("torchao.") or ".quantized" in kind for kind in kinds)


def _is_handed(side: Any) -> bool:
    return isinstance(side, LoadedModel | nn.Module)


def _described(side: Any) -> LoadedModel:
    return side if isinstance(side, LoadedModel) else describe_module(side)


def _varied(
    loaded: LoadedModel, checkpoint: Path | None, of_b: BSettings, settings: ModelRequest
) -> LoadedModel:
    """Return a copy of a module with other weights, device or dtype."""
    info, filled = loaded.info, None
    device = resolve_device(of_b.device)[0] if of_b.device else loaded.device
    dtype = resolve_dtype(of_b.dtype) if of_b.dtype else loaded.dtype
    message = f"'{loaded.info.name}' cannot be copied for B"
    module = copied(loaded.module, message, "give two modules as a and b")
    if checkpoint is not None:
        architecture = Architecture("import", info.name, loaded.family, lambda _: module, False, True)
        request = ModelRequest(info.name, key=of_b.key or settings.key, strict=settings.strict)
        filled = fill_from_checkpoint(architecture, request, checkpoint)
        info = replace(info, weights=filled.weights)
    if (device, dtype) != (loaded.device, loaded.dtype):
        module.to(device, dtype)
    notes, warnings = (filled.notes, filled.warnings) if filled else ((), ())
    return replace(
        loaded, module=module, info=info, device=device, dtype=dtype, notes=notes, warnings=warnings
    )


def load_both(a: Source, b: Source, progress: Progress) -> tuple[LoadedModel, LoadedModel]:
    """Load both models and print their notes; of B, only those that A does not have."""
    ours = _loaded(a)
    tell(progress, ours.notes, ours.warnings)
    theirs = _loaded(b)
    notes = (f"B: {note}" for note in theirs.notes if note not in ours.notes)
    tell(progress, notes, (notice for notice in theirs.warnings if notice not in ours.warnings))
    if program_of(theirs.module) is not None:
        return ours, theirs  # which takes no hooks, so that shared parameters do not matter
    shared = {id(part) for part in (*ours.module.modules(), *ours.module.parameters())}
    if any(id(part) in shared for part in (*theirs.module.modules(), *theirs.module.parameters())):
        if isinstance(a, LoadedModel) and isinstance(b, LoadedModel):
            message = (
                f"'{ours.info.name}' and '{theirs.info.name}' share layers, which cannot run for both at once"
            )
            raise CannotRunError(message, "give copy.deepcopy(...) of one of them")
        message = f"'{ours.info.name}' returns the same module each time, so A and B share their weights"
        raise CannotRunError(message, "pass a class or a factory, which makes a new one")
    return ours, theirs


def _loaded(side: Source) -> LoadedModel:
    assert not isinstance(side, WeightsFile | Mapping)
    if isinstance(side, ModelRequest) and is_exported(side.model):
        return load_program(Path(side.model))
    if isinstance(side, LoadedModel):
        return side
    if is_onnx(side.model):
        return load_skeleton(side)  # the runtime reads the values
    return load_model(replace(side, needs_weights=True))


Weights: TypeAlias = tuple[DiffSide, dict[str, Tensor], tuple[Notice, ...]]  # of a side, and warnings


def open_weights(side: Source, seed: int, progress: Progress) -> Weights:
    """Return the state dict of a model, or the mapped tensors of a checkpoint."""
    if isinstance(side, LoadedModel) and isinstance(side.module, OnnxNet):
        side = WeightsFile(side.module.model.path)
    if isinstance(side, WeightsFile):
        return _open_file(side, progress)
    if isinstance(side, Mapping):
        weights = WeightsInfo("object", "object", "handed over")
        return _of_tensors(ModelInfo("file", "a dict", "", weights), unwrap_state(side)[0], ())
    loaded = _loaded(side)
    refuse_layouts(loaded.module, has_buffers=True)
    tell(progress, loaded.notes, loaded.warnings)
    state = loaded.module.state_dict()
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return describe(loaded, seed, None), tensors, loaded.warnings


def _open_file(file: WeightsFile, progress: Progress) -> Weights:
    path = file.path
    checkpoint = read_checkpoint(path, file.key)
    tell(progress, checkpoint.notes, checkpoint.warnings)
    # What `torch.nn.utils.prune` computes is in place of the weights before and their masks
    stored = checkpoint.state
    names = {name[:-5] for name in stored if name.endswith("_orig") and f"{name[:-5]}_mask" in stored}
    state = {name: one for name, one in stored.items() if name[:-5] not in names}
    state |= {name: stored[f"{name}_orig"] * stored[f"{name}_mask"] for name in names}
    if path.suffix.lower() == ".safetensors":  # which is not ordered
        state = {name: state[name] for name in sorted(state, key=in_order)}
    weights = WeightsInfo(str(path), path.name, "checkpoint", checkpoint.sha256)
    kind = TORCH_SCRIPT if is_script(str(path)) else ""
    return _of_tensors(ModelInfo("file", str(path), kind, weights), state, checkpoint.warnings)


def _of_tensors(info: ModelInfo, state: dict[str, Tensor], warnings: tuple[Notice, ...]) -> Weights:
    dtypes = sorted({dtype_name(tensor.dtype) for tensor in state.values()})
    return DiffSide(info, "cpu", ", ".join(dtypes), 0, None), state, warnings


def describe(loaded: LoadedModel, seed: int, mode: str | None) -> DiffSide:
    dtype = dtype_name(loaded.dtype) + " and quantised weights" * is_quantised(loaded.module)
    return DiffSide(loaded.info, str(loaded.device), dtype, seed, mode)


def as_b_takes(given: PythonInputs, a: LoadedModel, b: LoadedModel, progress: Progress) -> PythonInputs:
    """Return the input in the shape that an exported program states: noise, where none was asked for, or images."""
    request, shapes = given.request, list(getattr(b.module, "exported_shapes", ()))
    is_fixed = bool(shapes) and not b.module.takes_any_size
    if isinstance(b.module, OnnxNet) and b.module.input_shape is not None:
        shapes = [((b.module.model.inputs[0].shape or (None,))[0], *b.module.input_shape)]
        is_fixed = True
    is_given = given.named is not None or request.shapes or request.size or given.is_of_tensors
    if len(shapes) != 1 or is_given:
        return given
    batch, *shape = shapes[0]
    if given.is_noise:
        sizes = (batch if isinstance(batch, int) else request.batch or 1, *shape)
        return replace(given, request=replace(request, shapes=(",".join(map(str, sizes)),)))
    size = tuple(shape[-2:])
    if not is_fixed or size == natural_shapes(a.family, a.transforms, a.module, 1)[0][-2:]:
        return given
    progress.note(f"size: {size[0]} x {size[1]}, the only one that '{b.info.name}' takes")
    return replace(given, request=replace(request, size=",".join(map(str, size))))
