"""The sides and options of `diff`, read before anything heavy is imported."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import is_zipfile

from modelscope_cli.checkpoints.file_type import is_checkpoint_name
from modelscope_cli.checkpoints.reading import is_several
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.files import IMAGE_SUFFIXES
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.names import model_names
from modelscope_cli.models.request import ModelRequest, is_checkpoint, is_import, is_onnx, is_program
from modelscope_cli.models.weights_file import is_model_file, is_script
from modelscope_cli.records.run import invocation

Patterns = str | Sequence[str]

# The default `rtol` of torch.testing.assert_close.
ROUNDING = {"float64": 1e-7, "float32": 1.3e-6, "float16": 1e-3, "bfloat16": 1.6e-2}
HALF = ("float16", "bfloat16")
# The relative L2 by which other kernels may change the output of the first layer: 48 roundoffs, measured between
# the widest and the plainest kernels of a CPU on 22 architectures with random weights, where the worst was at 19;
# four in half precision, where sums are made in float32 and rounded once.
_PER_LAYER = {"float64": 48 * 2.0**-53, "float32": 48 * 2.0**-24, "float16": 2.0**-9, "bfloat16": 2.0**-6}
# What other kernels may do to a whole model; 20 dB of signal to noise for integers.
OTHER_KERNELS = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
QUANTISED = 0.1
_INPUT_SUFFIXES = IMAGE_SUFFIXES | {".npy"}


@dataclass(frozen=True, slots=True)
class Named:
    """A side by name: a model with or without a checkpoint, or (without a model) the tensors of a checkpoint."""

    model: str | None
    checkpoint: Path | None = None
    is_left_out: bool = False  # whether it was not named, and is A again


@dataclass(frozen=True, slots=True)
class BSettings:
    """Settings of B alone; None where they are those of A."""

    weights: str | None = None
    checkpoint: Path | None = None
    key: str | None = None
    device: str | None = None
    dtype: str | None = None
    mode: str | None = None
    seed: int | None = None

    def typed(self) -> dict[str, object]:
        return {f"--b-{field.name}": getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A checkpoint whose tensors are compared without a model; `key` selects an entry."""

    path: Path
    key: str | None = None


# A model to load, a loaded one, or (without a run) a checkpoint or dict whose tensors are compared without a model.
Source: TypeAlias = ModelRequest | LoadedModel | WeightsFile | Mapping[str, Any]


def read_names(a: str, b: str | None, model: str | None, *, is_run: bool) -> tuple[Named, Named]:
    """Distinguish models from checkpoints.

    A checkpoint is run in `model`, else in the model of the other side, else in the architecture it is recognised
    as; without an input (not `is_run`) its tensors are compared without a model.
    """
    texts = (a, b or a)
    models = [text for text in texts if not (holds_weights(text) or is_program(text))] if is_run else []
    runs_in = model or next(iter(models), None)

    def named(text: str) -> Named:
        if is_run and is_program(text):
            return Named(text)
        is_recognised = is_run and runs_in is None  # loading it names its architecture
        return Named(runs_in, Path(text)) if holds_weights(text) and not is_recognised else Named(text)

    return named(texts[0]), replace(named(texts[1]), is_left_out=b is None)


def refuse_script(text: str, other: str | None) -> None:
    """Refuse TorchScript in a run: no hook reaches into it, and its weights in A's class do not run its code."""
    if is_script(text):
        message = f"'{text}' is TorchScript, whose layers cannot be compared: export the model as .pt2"
        hint = f"{shlex.join(('modelscope', 'weights', text))}   lists its tensors"
        if other is not None:
            words = shlex.join(("modelscope", "diff", other, text))
            hint = f"{words}   compares the weights alone, not what is computed with them"
        raise CannotRunError(message, hint)


def holds_weights(text: str) -> bool:
    """Check that a text names a checkpoint, a file or folder, and not a model or image."""
    if is_import(text) or text.lower() in model_names():
        return False
    path = Path(text)
    if path.is_dir():
        holds_some = is_several(path) or any(is_checkpoint_name(file.name) for file in path.iterdir())
        return holds_some or is_model_file(text)
    is_known = is_checkpoint_name(path.name) or path.suffix.lower() == ".npz"
    return is_known or is_model_file(text) or is_script(text)


def is_input(text: str) -> bool:
    """Check that a text names an image, a folder or a glob, and not a checkpoint or a (perhaps mistyped) model."""
    if holds_weights(text) or is_import(text) or text.lower() in model_names():
        return False
    suffix = Path(text).suffix.lower()
    is_pattern = any(mark in text for mark in "*?[")
    is_some = Path(text).exists() and suffix != ".py" and not is_zipfile(text)  # as TorchScript is
    return text == "-" or suffix in _INPUT_SUFFIXES or is_pattern or is_some


def requests_of(
    settings: ModelRequest, a_named: Named, b_named: Named, of_b: BSettings
) -> tuple[ModelRequest | WeightsFile, ModelRequest | WeightsFile]:
    """Return the model to load, or the file whose tensors to compare, for A and for B.

    Args:
        settings: the settings of both sides; `of_b`: those of B alone.
    """
    exported = a_named.model or str(a_named.checkpoint)
    other = b_named.model or str(b_named.checkpoint)
    if is_onnx(exported) and not is_onnx(other):
        message = f"'{exported}' is an exported model: give it as B, and the model it came from as A"
        words, swapped = invocation().argv or ("diff", exported, other), {exported: other, other: exported}
        raise UsageError(message, shlex.join(("modelscope", *(swapped.get(word, word) for word in words))))
    reason = "is a setting of models, and checkpoints without a model are compared as they are"
    if b_named.model is None:
        refuse_given({**of_b.typed(), "--b-key": None}, reason, "--model NAME")
        if a_named.model is None:
            weights = None if settings.weights == "auto" else settings.weights
            refuse_given({"--weights": weights, "--checkpoint": settings.checkpoint}, reason, "--model NAME")
    base = a_named if a_named.model else b_named
    if base.model is None:
        return _file(a_named, settings.key), _file(b_named, of_b.key or settings.key)
    if settings.checkpoint and a_named.checkpoint:
        message = f"'{a_named.checkpoint}' and '--checkpoint {settings.checkpoint}' both give weights for A"
        raise UsageError(message, f"leave out --checkpoint {settings.checkpoint}")
    keys = {"--key": settings.key, "--b-key": of_b.key}
    checkpoints = (a_named.checkpoint, b_named.checkpoint, settings.checkpoint, of_b.checkpoint)
    if not any((*checkpoints, *(is_checkpoint(one.model or "") for one in (a_named, b_named)))):
        refuse_given(keys, "needs a checkpoint, but none is given", "--checkpoint FILE")
    a = replace(settings, model=base.model, checkpoint=base.checkpoint or settings.checkpoint)
    a = _with_key(a, settings.key)
    if b_named.model is None:
        return a, _file(b_named, of_b.key or settings.key)
    b = _with_key(_request_b(a, b_named, settings.checkpoint, of_b), of_b.key or settings.key)
    return (a if a_named.model is not None else _file(a_named, settings.key)), b


def _with_key(request: ModelRequest, key: str | None) -> ModelRequest:
    """Check a side, with the key if it has a checkpoint; a key may be meant for the other side alone."""
    has_checkpoint = request.checkpoint is not None or is_checkpoint(request.model)
    return check_request(replace(request, key=key if has_checkpoint else None))


def _file(side: Named, key: str | None) -> WeightsFile:
    assert side.checkpoint is not None
    return WeightsFile(side.checkpoint, key)


def _request_b(a: ModelRequest, named: Named, option: Path | None, of_b: BSettings) -> ModelRequest:
    """Return the request for B: that for A with B's name and options; `option` is `--checkpoint`, for both."""
    checkpoint_of_b = named.checkpoint
    if checkpoint_of_b is not None and of_b.checkpoint is not None and not named.is_left_out:
        message = f"'{checkpoint_of_b}' and '--b-checkpoint {of_b.checkpoint}' both give weights for B"
        raise UsageError(message, f"leave out --b-checkpoint {of_b.checkpoint}")
    # `--b-weights` replaces a checkpoint that B only inherits from A.
    inherited = None if of_b.weights else option
    if is_program(named.model or ""):
        reason = f"does not apply to '{named.model}', which is an exported model"
        refuse_given(replace(of_b, mode=None, seed=None).typed(), reason, "")
        return ModelRequest(named.model or "", seed=a.seed)
    checkpoint = of_b.checkpoint or (checkpoint_of_b if not (of_b.weights and named.is_left_out) else None)
    assert named.model is not None
    return replace(
        a,
        model=named.model,
        weights=of_b.weights or ("auto" if checkpoint else a.weights),
        checkpoint=checkpoint or inherited,
        device=of_b.device or a.device,
        dtype=of_b.dtype or a.dtype,
        seed=a.seed if of_b.seed is None else of_b.seed,
    )


def choose_tolerance(
    tolerance: float | None,
    dtypes: Sequence[str] | None,
    *,
    n_layers: int = 1,
    has_other_kernels: bool = False,
    is_quantised: bool = False,
) -> tuple[float, str]:
    """Return the tolerance on the relative L2, and its origin in words.

    Args:
        dtypes: the dtypes in which the models run, and those that all weights of B are rounded to; None to compare
            stored tensors, which are exact.
        n_layers: of A, by which the errors of half precision add up.
        has_other_kernels: whether B is run by another runtime.
        is_quantised: whether B computes with integers.
    """
    if tolerance is not None:
        return tolerance, "asked for"
    if is_quantised:
        return QUANTISED, "for quantised models, a signal-to-noise ratio of 20 dB"
    if has_other_kernels and dtypes is not None:
        coarsest = max(dtypes, key=lambda dtype: OTHER_KERNELS.get(dtype, 0.0))
        return OTHER_KERNELS.get(coarsest, 0.0), f"for {coarsest} with different kernels"
    if dtypes is None:
        return 0.0, "exact"
    coarsest = max(dtypes, key=lambda dtype: ROUNDING.get(dtype, 0.0))
    if coarsest in HALF:
        return rounding_at(n_layers, coarsest), f"rounding of {coarsest} after {n_layers} layers"
    return ROUNDING.get(coarsest, 0.0), f"assert_close's tolerance for {coarsest}"


def rounding_at(order: int, *dtypes: str) -> float:
    """Return the relative L2 by which other kernels may change the output of a layer.

    The errors of the layers before it add up like those of a random walk, so it grows with the root of how many.

    Args:
        order: the layer's place in the execution, from 1.
        dtypes: of which the coarsest counts.
    """
    of_one = max(_PER_LAYER.get(dtype, _PER_LAYER["float32"]) for dtype in dtypes)
    return of_one * math.sqrt(max(order, 1))


def refuse_given(options: Mapping[str, object], reason: str, hint: str) -> None:
    """Refuse the first option that has a value; the default hint is to leave it out."""
    for option, value in options.items():
        if value not in (None, False, (), []):
            first = value[0] if isinstance(value, list | tuple) else value
            text = option if value is True else f"{option} {first}"
            raise UsageError(f"'{text}' {reason}", hint or f"leave out {text}")
