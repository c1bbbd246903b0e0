"""Load a state dict into a model, naming every key that does not fit."""

import inspect
import shlex
import warnings
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from modelscope_cli.checkpoints.identify import identify, without_prefixes
from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.naming import cells_of, dtype_name, some
from modelscope_cli.records.run import Notice

_MIN_FITTING_FRACTION = 0.2  # below it the checkpoint belongs to another model, and listing keys is useless
_MAX_REPEATS = 16  # heads repeat the classes: 4 box coordinates each, up to this many anchors
_QUANTISED = "modelscope help model  # give FILE.py:NAME, which quantises the model and loads the file"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Names in which a state dict and a model differ; `misshaped` gives both shapes."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshaped: tuple[str, ...]

    def notices(self) -> tuple[Notice, ...]:
        """Return one warning for each kind of difference: `2 keys are missing (fc.weight, fc.bias)`."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "misshaped": self.misshaped}
        are = {kind: "key is" if len(keys) == 1 else "keys are" for kind, keys in kinds.items()}
        found = {k: listed(keys).replace(" ", f" {are[k]} {k} ", 1) for k, keys in kinds.items() if keys}
        return tuple(Notice(f"{kind}_keys", words) for kind, words in found.items())

    def hint(self, n_own: int) -> str:
        """Return what to do about other keys: a second copy of all weights, such as an average, can be loaded."""
        tops = {key.partition(".")[0] for key in self.unexpected}
        if len(tops) == 1 and 2 * len(self.unexpected) > n_own and not self.missing:
            return f"--key {tops.pop()}   loads that copy of the weights; --no-strict leaves it out"
        return "--no-strict   leaves out keys that do not match"


def untrained(module: nn.Module, lacking: Collection[str]) -> tuple[Notice, ...]:
    """Return a warning of parameters that no file has; heads that only a training uses do not count."""
    every = dict(module.named_parameters(remove_duplicate=False))
    filled = {id(one) for name, one in every.items() if name not in lacking}  # also by the name of a tied one
    names = [n for n, one in every.items() if id(one) not in filled and ".aux" not in f".{n.lower()}"]
    are = "is" if len(names) == 1 else "are"
    words = f"{some(names)} {are} random, not from the checkpoint: predictions mean nothing before training"
    return (Notice("untrained_weights", words),) if names else ()


def strip_prefixes(state: dict[str, Tensor], module: nn.Module) -> tuple[dict[str, Tensor], str | None]:
    """Return `state` without wrapper prefixes if its keys then fit `module` better, and a note."""
    wanted = module.state_dict().keys()
    readings = without_prefixes(state)
    removed, names = max(readings, key=lambda reading: len(wanted & set(reading[1].values())))
    if all(full == name for full, name in names.items()):
        return state, None
    stripped = {names[full]: tensor for full, tensor in state.items()}
    return stripped, f"checkpoint: prefix '{removed}' removed from its keys" if removed else None


def classes_of(state: Mapping[str, Tensor], module: nn.Module) -> list[int]:
    """Return numbers of classes with which `module` could fit `state`, likeliest first; empty if none.

    Only leading dimensions may differ, all by one ratio: 1000 -> 10 for `fc.weight`, 364 -> 40 for its boxes.
    """
    tensors = _tensors_of(module)
    names = [name for name, own in tensors.items() if name in state and own.shape != state[name].shape]
    pairs = [(tuple(tensors[name].shape), tuple(state[name].shape)) for name in names]
    if any("weight_hh" in name for name in names):  # the gates of recurrent layers
        return []
    if not pairs or any(not own or len(own) != len(other) or own[1:] != other[1:] for own, other in pairs):
        return []
    own, other = min((own[0], other[0]) for own, other in pairs)
    if any(mine[0] * other != theirs[0] * own for mine, theirs in pairs):
        return []
    return [other // n for n in range(1, _MAX_REPEATS + 1) if other % n == 0 and own % n == 0]


def load_state(
    state: dict[str, Tensor], module: nn.Module, *, strict: bool, name: str, file: str
) -> tuple[str, tuple[Notice, ...]]:
    """Copy `state` into `module`; return its share of the tensors, and a warning for each kind of misfit.

    The share is empty where all are filled. A missing `num_batches_tracked` is not a difference.
    """
    own = _tensors_of(module)
    misshaped = {key for key, tensor in state.items() if key in own and not _is_alike(key, tensor, own[key])}
    fitting = copy(state)  # with the `_metadata` it may carry
    for key in misshaped:
        del fitting[key]
    try:
        result = _copy_into(module, fitting)
    except KeyError as error:  # modules of torch.ao index the state dict
        message = f"checkpoint '{file}' lacks {error}, which the quantised layers of '{name}' need"
        raise CannotRunError(message, _QUANTISED) from error
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[2].strip() or str(error)
        message = f"checkpoint '{file}' cannot be copied into '{name}': {reason.partition(chr(10))[0]}"
        raise CannotRunError(message, f"modelscope summary {shlex.quote(name)}") from error
    misfit = Misfit(
        tuple(key for key in result.missing_keys if key not in misshaped and not _is_counter(key)),
        tuple(key for key in result.unexpected_keys if not _is_counter(key)),
        tuple(_shapes(k, state, own) for k in sorted(misshaped, key=lambda k: ("weight_hh" not in k, k))),
    )
    if not (notices := misfit.notices()):
        return "", ()
    _refuse_of_another(state, name if strict else "", file)
    alarm = untrained(module, {*result.missing_keys, *misshaped})
    n_fitting = len(fitting) - len(result.unexpected_keys)
    n_all = max(sum(not _is_counter(key) for key in own), len(state))
    if n_fitting < _MIN_FITTING_FRACTION * n_all:
        message = f"checkpoint '{file}' is for another architecture: {n_fitting} of {n_all} keys fit '{name}'"
        told = [
            *(text for text in misfit.misshaped[:1] if " gate" in text),
            *(f"{shlex.quote(key)} of the file is not in the model" for key in misfit.unexpected[:1]),
            *(f"{shlex.quote(key)} of the model is not in the file" for key in misfit.missing[:1]),
        ]
        about = "lists its layers"
        if 2 * len(misshaped) > n_all and " gate" not in misfit.misshaped[0]:  # only the sizes are others
            told = [*misfit.misshaped[:2]]
            about = "lists its shapes; --model-arg KEY=VALUE builds the model in different sizes"
        message += f"; {', '.join(told)}"
        raise CannotRunError(message, f"modelscope weights {shlex.quote(file)}   {about}")
    is_aux = all(".aux" in f".{key.lower()}" for key in misfit.missing)  # as in `untrained`
    if strict and not (is_aux and not misfit.unexpected and not misshaped):
        parts, counts = ", ".join(notice.message for notice in notices), classes_of(state, module)
        hint = misfit.hint(len(own))
        heads = [key for key in misfit.unexpected if key.endswith("weight") and state[key].ndim == 2]
        if counts:
            n_own = min(len(own[key]) for key in misshaped)
            parts = f"it has {counts[0]} classes, the model {n_own} ({misfit.misshaped[-1]})"
            hint = _built_for(counts[0], n_own, module, name)
        elif alarm and heads:
            layers = (f"{key[:-7]} Linear {state[key].shape[1]}->{state[key].shape[0]}" for key in heads[:4])
            hint = f"the head of the file is {', '.join(layers)}: build it in a file"
        elif alarm:
            hint = f"modelscope weights {shlex.quote(file)}   lists the layers of the file"
        if any(key.endswith((".zero_point", "._packed_params._packed_params")) for key in misfit.unexpected):
            parts += "; it is from a quantised model"
            hint = _QUANTISED
        raise CannotRunError(f"checkpoint '{file}' does not fit '{name}': {parts}", hint)
    n_own = sum(not _is_counter(key) for key in own)
    n_filled = n_own - len(misfit.missing) - len(misshaped)
    return f"{n_filled} of {n_own} tensors from " * (n_filled < n_own), (*notices, *alarm)


def _refuse_of_another(state: dict[str, Tensor], name: str, file: str) -> None:
    found = identify({key: tuple(tensor.shape) for key, tensor in state.items()}).name
    is_other = found and found.removeprefix("timm:") != name.removeprefix("timm:").partition(".")[0]
    if is_other and (name.isidentifier() or name.startswith("timm:")):
        message = f"checkpoint '{file}' does not fit '{name}': it is a checkpoint of '{found}'"
        raise CannotRunError(message, f"modelscope summary {found} -c {shlex.quote(file)}")


def _built_for(n: int, n_own: int, module: nn.Module, name: str) -> str:
    """Return the hint for `n` classes: with the argument called so, or that is their number by default."""
    takes = inspect.signature(type(module)).parameters.values()
    meant = [one.name for one in takes if "classes" in one.name]
    meant = meant or [one.name for one in takes if one.default == n_own]
    is_clear = len(meant) == 1 and name.endswith(f":{type(module).__name__}")
    return f"--model-arg {meant[0]}={n}" if is_clear else f"build the model for {n} classes"


def nonfinite_weights(module: nn.Module) -> tuple[Notice, ...]:
    """Return a warning that names the weights holding NaN or infinity; empty where there are none."""
    bad = [name for name, value in module.state_dict().items() if _has_nonfinite(value)]
    words = f"NaN or infinite values in the weights: {listed(bad, 3)}"
    return (Notice("nonfinite_weights", words),) if bad else ()


def _tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the named tensors that have a shape, so not those of lazy layers."""
    values: dict[str, Any] = module.state_dict()
    return {key: value for key, value in values.items() if isinstance(value, Tensor) and not is_lazy(value)}


def _copy_into(module: nn.Module, state: dict[str, Tensor]) -> Any:
    try:
        with warnings.catch_warnings():  # of the counter that batch norm adds to an older checkpoint
            warnings.filterwarnings("ignore", "for .*num_batches_tracked: copying from a non-meta")
            return module.load_state_dict(state, strict=False)
    except ValueError:  # MNASNet needs its layout version, which only torch's format stores
        remaining = OrderedDict(state)
        vars(remaining)["_metadata"] = vars(module.state_dict())["_metadata"]
        return module.load_state_dict(remaining, strict=False)


def _is_alike(key: str, tensor: Tensor, own: Tensor) -> bool:
    """Tell whether `tensor` can be copied into `own`; `value.half()` may also have cast batch norm counters."""
    is_same_kind = tensor.is_floating_point() == own.is_floating_point()
    return tensor.shape == own.shape and (is_same_kind or _is_counter(key))


def _is_counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def _has_nonfinite(value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta or not value.numel():
        return False  # quantized modules also keep dtypes and packed parameters there
    return not all(bool(torch.isfinite(bound)) for bound in torch.aminmax(value))  # NaN goes through aminmax


def _shapes(key: str, *states: Mapping[str, Tensor]) -> str:
    both = [one[key] for one in states]
    texts = [f"{'×'.join(map(str, one.shape)) or 'scalar'} {dtype_name(one.dtype)}" for one in both]
    texts = cells_of(key, *(one.shape for one in both)) or [one.removesuffix(" float32") for one in texts]
    return f"{key} {', not '.join(texts)}"


def listed(names: Sequence[str], n: int = 5) -> str:
    """Return the number of names and the first `n` of them."""
    return f"{len(names)} ({', '.join(names[:n])}{', ...' * (len(names) > n)})"
