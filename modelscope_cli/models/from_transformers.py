"""Models of transformers by name or folder. transformers is imported when one is asked for; code of others never.

A repository's own code would need `trust_remote_code`, which is never set, and weights are read by our own reader,
so that no pickle of anybody is loaded.
"""

import copy
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from modelscope_cli.checkpoints.reading import INDEX, shards_of
from modelscope_cli.errors import CannotRunError, UsageError, nearest
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.architecture import Architecture
from modelscope_cli.models.checkpoint import Checkpoint, read_checkpoint
from modelscope_cli.models.fit import Misfit, nonfinite_weights
from modelscope_cli.models.hub_files import fetch
from modelscope_cli.models.initialise import Filled, fill_randomly
from modelscope_cli.models.pretrained import WeightsUnavailableError
from modelscope_cli.models.request import ModelRequest, parse_model_args
from modelscope_cli.models.seeding import seeded
from modelscope_cli.records.run import Notice, WeightsInfo

# As a repository may call them; a large one has shards and an index.
_FILES = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
_PROCESSOR = "preprocessor_config.json"


def hf_architecture(request: ModelRequest, name: str) -> Architecture:
    """Describe the model of a repository, or of a folder with a `config.json`, with random values.

    Raises:
        UsageError: a model argument that its configuration does not know (exit 2).
        CannotRunError: the configuration cannot be had, or asks for code that is not transformers' (exit 4).
    """
    config = _configure(_read_config(request, name), parse_model_args(request.model_args), f"hf:{name}")
    kind = _class_of(config)

    def make(num_classes: int | None) -> nn.Module:
        with seeded(request.seed), _explained(name), without_dynamo():
            return kind(_with_classes(config, num_classes))

    takes_classes = kind.__name__.endswith("ForImageClassification")
    return Architecture("hf", f"hf:{name}", "custom", make, takes_num_classes=takes_classes)


def fill_from_hf(architecture: Architecture, request: ModelRequest, name: str) -> Filled:
    """Build with the weights of the repository or folder; with `auto`, randomly where they cannot be had.

    Raises:
        UsageError: weights of another name: a repository has but one kind (exit 2).
        CannotRunError: the file cannot be had and was asked for, or does not load (exit 4).
    """
    if request.weights.lower() not in ("auto", "default"):
        message = f"'hf:{name}' has no weights '{request.weights}', only DEFAULT"
        raise UsageError(message, "--weights DEFAULT")
    try:
        checkpoint, origin = _read_weights(request, name)
    except WeightsUnavailableError as error:
        if request.weights.lower() != "auto":
            raise
        filled = fill_randomly(architecture, request)
        message = f"'{architecture.name}' has random weights, so its numbers mean little: {error.message}"
        return Filled(filled.module, filled.weights, warnings=(Notice("random_weights", message),))
    module, misfit = _load(request, name, checkpoint)
    notes = [f"weights: {checkpoint.path.name} ({request.weights}; {origin}, {checkpoint.path})"]
    info = WeightsInfo(request.weights, checkpoint.path.name, origin, checkpoint.sha256)
    warnings = checkpoint.warnings + misfit.notices() + nonfinite_weights(module)
    return Filled(module, info, None, (*notes, *checkpoint.notes), warnings)


def _load(request: ModelRequest, name: str, checkpoint: Checkpoint) -> tuple[nn.Module, Misfit]:
    """Let transformers copy the tensors into the model, for it also renames old keys."""
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
            near = nearest(key, config.to_dict())
            message = f"'{model}' has no setting '{key}'" + (f": {near}" if near else "")
            raise UsageError(message, "leave out --model-arg")
        setattr(config, key, value)
    return config


def _class_of(config: Any) -> Any:
    """Return transformers' own class for a configuration: the one it names, else the model without a head."""
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
    path, origin = fetch(name, _FILES, request)
    for shard in shards_of(path) if path.name.endswith(INDEX) else ():
        fetch(name, (shard,), request)
    # A repository need not say how its images are prepared; `inputs.processor` reads the cache and never downloads.
    with suppress(WeightsUnavailableError):
        fetch(name, (_PROCESSOR,), request)
    return read_checkpoint(path), origin


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Keep transformers quiet, and say in one line what it raises."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    is_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (CannotRunError, UsageError):
        raise
    except Exception as error:  # whatever transformers does with a configuration or weights it cannot use
        reason = " ".join(str(error).split()).partition(". ")[0][:300] or type(error).__name__
        hint = f"ls {shlex.quote(name)}" if os.path.isdir(name) else f"hf download {name}"
        raise CannotRunError(f"'hf:{name}' cannot be loaded: {reason}", hint) from error
    finally:
        logging.set_verbosity(level)
        if is_bar:
            logging.enable_progress_bar()
