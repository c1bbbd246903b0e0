"""Build models of timm and transformers by name, with their published weights.

Each library is imported only for its own models; code of a repository never runs. Hugging Face files come from the
cache or are downloaded by `huggingface_hub`.
"""

import copy
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from modelscope_cli.checkpoints.file_type import INDEX
from modelscope_cli.checkpoints.reading import shards_of
from modelscope_cli.checkpoints.tensors import Checkpoint, read_checkpoint
from modelscope_cli.errors import CannotRunError, UsageError, with_nearest
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.architecture import Architecture, seeded
from modelscope_cli.models.fit import Misfit, nonfinite_weights, untrained
from modelscope_cli.models.initialise import Filled, fill_without
from modelscope_cli.models.request import ModelRequest, parse_model_args
from modelscope_cli.models.zoo import WeightsUnavailableError
from modelscope_cli.records.run import WeightsInfo


def fetch(repository: str, files: Sequence[str], request: ModelRequest) -> tuple[Path, str]:
    """Return the first of `files` in a repository, and whether it came from the `cache` or a `download`.

    Args:
        repository: `owner/name`, or `owner/name@revision`.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, logging

    name, _, revision = repository.partition("@")
    for file in files:
        cached = try_to_load_from_cache(name, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached), "cache"
    reason = "offline and not in the cache"
    logging.set_verbosity_error()  # its retries: what they end with is told below
    for file in () if request.is_offline else files:
        (enable_progress_bars if request.progress else disable_progress_bars)()
        try:
            return Path(hf_hub_download(name, file, revision=revision or None)), "download"
        except Exception as error:  # of the network, the hub or the disk: the first line names the cause
            reason = f"download failed, {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    raise WeightsUnavailableError(
        f"weights '{repository}' are not available: {reason}", f"--weights none   or hf download {name}"
    )


# Options of this tool; as builder arguments they would bypass it and download or open files.
_OPTION_OF = {
    "pretrained": "--weights",
    "num_classes": "--num-classes",
    "checkpoint_path": "--checkpoint",
    "pretrained_cfg_overlay": "--weights",
}
# The names under which a repository of the hub may hold weights; only the first is not a pickle.
_TIMM_FILES = ("model.safetensors", "pytorch_model.bin")


def _timm_architecture(request: ModelRequest, name: str) -> Architecture:
    """Describe timm's model `name`, which may end in a weights tag, with random values."""
    model_args = parse_model_args(request.model_args)
    for key in model_args.keys() & _OPTION_OF.keys():
        message = f"model argument '{key}' is a separate option for timm models"
        raise UsageError(message, f"{_OPTION_OF[key]} {model_args[key]}")
    published(name)

    def make(num_classes: int | None) -> nn.Module:
        with seeded(request.seed):
            return _create(name, num_classes, model_args, {"pretrained": False})

    return Architecture("timm", f"timm:{name}", "custom", make, takes_num_classes=True)


def _fill_timm(architecture: Architecture, request: ModelRequest, name: str) -> Filled:
    """Build with timm's weights; with `auto`, randomly if their file is unavailable."""
    arch, _, tag = name.partition(".")
    if request.weights.lower() not in ("auto", "default"):
        tag = request.weights
    name = f"{arch}.{tag}" if tag else arch
    cfg = published(name)
    try:
        file, origin = _find_file(name, cfg, request)
    except WeightsUnavailableError as error:
        return fill_without(architecture, request, error)
    checkpoint = read_checkpoint(file)
    overlay = {"state_dict": checkpoint.state, "custom_load": False, "source": None}
    model_args = parse_model_args(request.model_args)
    with seeded(request.seed):  # for a head with another number of classes
        keywords = {"pretrained": True, "pretrained_cfg_overlay": overlay}
        module = _create(name, request.num_classes, model_args, keywords)
    for config in (getattr(module, "pretrained_cfg", {}), getattr(module, "default_cfg", {})):
        config.pop("state_dict", None)  # else the weights are kept in memory twice
    where = f"from the cache, {file}" if origin == "cache" else f"downloaded to {file}"
    notes = [f"weights: {cfg.tag or 'DEFAULT'} ({request.weights}; {where})"]
    if request.num_classes is not None and request.num_classes != cfg.num_classes:
        notes.append(f"num classes: {request.num_classes}, the head is random (seed {request.seed})")
    info = WeightsInfo(request.weights, cfg.tag or "DEFAULT", origin, checkpoint.sha256)
    return Filled(module, info, None, tuple(notes), checkpoint.warnings + nonfinite_weights(module))


def published(name: str) -> Any:
    """Return the `PretrainedCfg` of a timm model."""
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
    """Return the weights tags that timm publishes for an architecture."""
    tags = (name.partition(".")[2] for name in _timm().list_models(f"{arch}.*", pretrained=True))
    return tuple(tag for tag in tags if tag)


def family_in_timm(arch: str) -> str:
    """Return the module of timm that defines an architecture: `resnet`, `vision_transformer`."""
    return _timm().models.model_entrypoint(arch).__module__.rpartition(".")[2]


def _timm() -> Any:
    with without_dynamo():
        import timm
    return timm


def _find_file(name: str, cfg: Any, request: ModelRequest) -> tuple[Path, str]:
    if cfg.hf_hub_id:
        files = (cfg.hf_hub_filename,) if cfg.hf_hub_filename else _TIMM_FILES
        return fetch(cfg.hf_hub_id, files, request)
    reason = f"they are published only at {cfg.url}" if cfg.url else "timm publishes none"
    hint = "--checkpoint FILE   the file, once you have downloaded it" if cfg.url else "--weights none"
    raise WeightsUnavailableError(f"weights of 'timm:{name}' are not available: {reason}", hint)


def _create(
    name: str, num_classes: int | None, model_args: dict[str, Any], keywords: dict[str, Any]
) -> nn.Module:
    timm = _timm()
    classes = {} if num_classes is None else {"num_classes": num_classes}
    try:
        with without_dynamo():
            return timm.create_model(name, **keywords, **classes, **model_args)
    except Exception as error:  # constructors may raise anything for unsuitable arguments
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if model_args and not isinstance(error, MemoryError):
            arguments = ", ".join(f"{key}={value}" for key, value in model_args.items())
            message = f"'timm:{name}' cannot be built with '{arguments}': {reason}"
            raise UsageError(message, "leave out --model-arg") from error
        raise CannotRunError(
            f"'timm:{name}' cannot be built: {reason}", f"modelscope summary timm:{name}"
        ) from error


# Weights files of a repository; a large one has shards and an index.
_HF_FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
_PROCESSOR = "preprocessor_config.json"


def _hf_architecture(request: ModelRequest, name: str) -> Architecture:
    """Describe the model of a repository, or of a folder with a `config.json`, with random values."""
    config = _configure(_read_config(request, name), parse_model_args(request.model_args), f"hf:{name}")
    kind = _class_of(config)

    def make(num_classes: int | None) -> nn.Module:
        with seeded(request.seed), _explained(name), without_dynamo():
            return kind(_with_classes(config, num_classes))

    takes_classes = kind.__name__.endswith("ForImageClassification")
    return Architecture("hf", f"hf:{name}", "custom", make, takes_num_classes=takes_classes)


def _fill_hf(architecture: Architecture, request: ModelRequest, name: str) -> Filled:
    """Build with the weights of the repository or folder; with `auto`, randomly if unavailable."""
    if request.weights.lower() not in ("auto", "default"):
        message = f"'hf:{name}' has no weights '{request.weights}', only DEFAULT"
        raise UsageError(message, "--weights DEFAULT")
    try:
        checkpoint, origin = _read_weights(request, name)
    except WeightsUnavailableError as error:
        return fill_without(architecture, request, error)
    module, misfit = _load(request, name, checkpoint)
    notes = [f"weights: {checkpoint.path.name} ({request.weights}; {origin}, {checkpoint.path})"]
    info = WeightsInfo(request.weights, checkpoint.path.name, origin, checkpoint.sha256)
    notices = misfit.notices() + untrained(module, misfit.missing)
    warnings = checkpoint.warnings + notices + nonfinite_weights(module)
    return Filled(module, info, None, (*notes, *checkpoint.notes), warnings)


def _load(request: ModelRequest, name: str, checkpoint: Checkpoint) -> tuple[nn.Module, Misfit]:
    """Load the tensors through transformers, which also renames old keys."""
    config = _configure(_read_config(request, name), parse_model_args(request.model_args), f"hf:{name}")
    with seeded(request.seed), _explained(name), without_dynamo():
        module, info = _class_of(config).from_pretrained(
            None,
            config=_with_classes(config, request.num_classes),
            state_dict=checkpoint.state,
            ignore_mismatched_sizes=request.num_classes is not None,
            output_loading_info=True,
        )
    module.config.name_or_path = name  # where its image processor is
    shapes = tuple(str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"])
    return module, Misfit(tuple(sorted(info["missing_keys"])), tuple(sorted(info["unexpected_keys"])), shapes)


def _read_config(request: ModelRequest, name: str) -> Any:
    with _explained(name), without_dynamo():
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(
            name, trust_remote_code=False, local_files_only=request.is_offline or os.path.isdir(name)
        )


def _configure(config: Any, model_args: dict[str, Any], model: str) -> Any:
    for key, value in model_args.items():
        if not hasattr(config, key):
            message = with_nearest(f"'{model}' has no setting '{key}'", key, config.to_dict())
            raise UsageError(message, "leave out --model-arg")
        setattr(config, key, value)
    return config


def _class_of(config: Any) -> Any:
    """Return transformers' class for a configuration: the one it names, else the headless model."""
    import transformers

    for name in config.architectures or ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    return transformers.AutoModel._model_mapping[type(config)]


def _with_classes(config: Any, num_classes: int | None) -> Any:
    config = copy.deepcopy(config)
    if num_classes is not None:
        config.num_labels = num_classes
    return config


def _read_weights(request: ModelRequest, name: str) -> tuple[Checkpoint, str]:
    if os.path.isdir(name):
        return read_checkpoint(Path(name)), "folder"
    path, origin = fetch(name, _HF_FILES, request)
    for shard in shards_of(path) if path.name.endswith(INDEX) else ():
        fetch(name, (shard,), request)
    # The image processor config is optional; `inputs.preprocess` reads only the cache.
    with suppress(WeightsUnavailableError):
        fetch(name, (_PROCESSOR,), request)
    return read_checkpoint(path), origin


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Silence transformers and turn its exceptions into one-line errors."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    is_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (CannotRunError, UsageError):
        raise
    except Exception as error:  # transformers may raise anything for an unsuitable configuration or weights
        reason = " ".join(str(error).split()).partition(". ")[0][:300] or type(error).__name__
        hint = f"ls {shlex.quote(name)}" if os.path.isdir(name) else f"hf download {name}"
        raise CannotRunError(f"'hf:{name}' cannot be loaded: {reason}", hint) from error
    finally:
        logging.set_verbosity(level)
        if is_bar:
            logging.enable_progress_bar()


class Library(NamedTuple):
    """A library whose models have a prefix of `hubs.PACKAGES`."""

    describe: Callable[[ModelRequest, str], Architecture]  # of the name behind the prefix
    fill: Callable[[Architecture, ModelRequest, str], Filled]  # build it with its pretrained weights


LIBRARIES = {"timm": Library(_timm_architecture, _fill_timm), "hf": Library(_hf_architecture, _fill_hf)}
