"""Models of timm by name, with the weights that timm publishes for them. timm is imported when one is asked for."""

from pathlib import Path
from typing import Any

from torch import nn

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.architecture import Architecture
from modelscope_cli.models.checkpoint import read_checkpoint
from modelscope_cli.models.fit import nonfinite_weights
from modelscope_cli.models.hub_files import fetch
from modelscope_cli.models.initialise import Filled, fill_randomly
from modelscope_cli.models.pretrained import WeightsUnavailableError
from modelscope_cli.models.request import ModelRequest, parse_model_args
from modelscope_cli.models.seeding import seeded
from modelscope_cli.records.run import Notice, WeightsInfo

# Options of this tool; as arguments they would start downloads, or open files, past it.
_OPTION_OF = {
    "pretrained": "--weights",
    "num_classes": "--num-classes",
    "checkpoint_path": "--checkpoint",
    "pretrained_cfg_overlay": "--weights",
}
# The names under which a repository of the hub may hold weights; only the first is not a pickle.
_FILES = ("model.safetensors", "pytorch_model.bin")


def timm_architecture(name: str, model_args: dict[str, Any], seed: int) -> Architecture:
    """Describe the model that timm calls `name`, which may end in the tag of its weights, with random values.

    Raises:
        UsageError: no such tag, or a model argument that is an option of this tool (exit 2).
    """
    for key in model_args.keys() & _OPTION_OF.keys():
        message = f"model argument '{key}' is an option of its own for models of timm"
        raise UsageError(message, f"{_OPTION_OF[key]} {model_args[key]}")
    published(name)

    def make(num_classes: int | None) -> nn.Module:
        with seeded(seed):
            return _create(name, num_classes, model_args, {"pretrained": False})

    defaults = {"in_chans": 3, "img_size": None}
    return Architecture("timm", f"timm:{name}", "custom", make, takes_num_classes=True, defaults=defaults)


def fill_from_timm(architecture: Architecture, request: ModelRequest, name: str) -> Filled:
    """Build with the weights that timm publishes; with `auto`, randomly where their file cannot be had.

    Raises:
        UsageError: the model has no weights of that name (exit 2).
        CannotRunError: the file cannot be had and was asked for, or does not load (exit 4).
    """
    arch, _, tag = name.partition(".")
    if request.weights.lower() not in ("auto", "default"):
        tag = request.weights
    name = f"{arch}.{tag}" if tag else arch
    cfg = published(name)
    try:
        file, origin = _find_file(name, cfg, request)
    except WeightsUnavailableError as error:
        if request.weights.lower() != "auto":
            raise
        filled = fill_randomly(architecture, request)
        message = f"'{architecture.name}' has random weights, so its numbers mean little: {error.message}"
        return Filled(filled.module, filled.weights, warnings=(Notice("random_weights", message),))
    checkpoint = read_checkpoint(file)
    overlay = {"state_dict": checkpoint.state, "custom_load": False, "source": None}
    model_args = parse_model_args(request.model_args)
    with seeded(request.seed):  # of a head for another number of classes
        asked = {"pretrained": True, "pretrained_cfg_overlay": overlay}
        module = _create(name, request.num_classes, model_args, asked)
    for kept in (getattr(module, "pretrained_cfg", {}), getattr(module, "default_cfg", {})):
        kept.pop("state_dict", None)  # else the weights stay in memory twice
    where = f"from the cache, {file}" if origin == "cache" else f"downloaded to {file}"
    notes = [f"weights: {cfg.tag or 'DEFAULT'} ({request.weights}; {where})"]
    if request.num_classes is not None and request.num_classes != cfg.num_classes:
        notes.append(f"num classes: {request.num_classes}, seed {request.seed} made the head")
    info = WeightsInfo(request.weights, cfg.tag or "DEFAULT", origin, checkpoint.sha256)
    return Filled(module, info, None, tuple(notes), checkpoint.warnings + nonfinite_weights(module))


def published(name: str) -> Any:
    """Return what timm publishes of a model, its `PretrainedCfg`.

    Raises:
        UsageError: the architecture has no weights of that tag (exit 2).
    """
    timm = _timm()
    try:
        cfg = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        arch, _, tag = name.partition(".")
        tags = tags_of(arch)
        message = f"'timm:{arch}' has no weights '{tag}'" + (f", only {', '.join(tags)}" if tags else "")
        raise UsageError(message, f"--model timm:{arch}{f'.{tags[0]}' if tags else ''}") from error
    return cfg if cfg is not None else timm.models.PretrainedCfg()


def tags_of(arch: str) -> tuple[str, ...]:
    """Return the names of the weights that timm publishes for an architecture."""
    known = (name.partition(".")[2] for name in _timm().list_models(f"{arch}.*", pretrained=True))
    return tuple(tag for tag in known if tag)


def family_in_timm(arch: str) -> str:
    """Return the module of timm that defines an architecture: `resnet`, `vision_transformer`."""
    return _timm().models.model_entrypoint(arch).__module__.rpartition(".")[2]


def _timm() -> Any:
    with without_dynamo():
        import timm
    return timm


def _find_file(name: str, cfg: Any, request: ModelRequest) -> tuple[Path, str]:
    if cfg.hf_hub_id:
        files = (cfg.hf_hub_filename,) if cfg.hf_hub_filename else _FILES
        return fetch(cfg.hf_hub_id, files, request)
    reason = f"they are published at {cfg.url} alone" if cfg.url else "timm publishes none"
    hint = "--checkpoint FILE   the file when you have downloaded it" if cfg.url else "--weights none"
    raise WeightsUnavailableError(f"weights of 'timm:{name}' cannot be had: {reason}", hint)


def _create(
    name: str, num_classes: int | None, model_args: dict[str, Any], asked: dict[str, Any]
) -> nn.Module:
    timm = _timm()
    classes = {} if num_classes is None else {"num_classes": num_classes}
    try:
        with without_dynamo():
            return timm.create_model(name, **asked, **classes, **model_args)
    except Exception as error:  # whatever a constructor of timm does with arguments it cannot use
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if model_args and not isinstance(error, MemoryError):
            typed = ", ".join(f"{key}={value}" for key, value in model_args.items())
            message = f"'timm:{name}' cannot be built with '{typed}': {reason}"
            raise UsageError(message, "leave out --model-arg") from error
        raise CannotRunError(
            f"'timm:{name}' cannot be built: {reason}", f"modelscope summary timm:{name}"
        ) from error
