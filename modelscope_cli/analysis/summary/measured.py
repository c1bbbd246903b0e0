"""What is measured of every call in runs with values: time, zeros, and the gradient at its output."""

import math
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from modelscope_cli.analysis.subject import first_of
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.inputs.python_inputs import PythonInputs
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.progress import Progress, counting
from modelscope_cli.records.refusals import check_choice
from modelscope_cli.records.run import Arguments, Notice, invocation
from modelscope_cli.records.summary import MEASURED, LayerShape

_FORWARDS = 5  # that are timed, behind one that is not
_Key = tuple[str, int]


def check_measured(measure: Sequence[str], model: ModelRequest | None = None) -> None:
    """Refuse what cannot be measured, and weights or a device of a model that is not run with values.

    Raises:
        UsageError: exit code 2.
    """
    for one in measure:
        check_choice("measured column", one, MEASURED)
    if model is None or measure:
        return
    for name, value, default in (("weights", model.weights, "none"), ("device", model.device, "auto")):
        if value.lower() != default:
            message = f"'--{name} {value}' changes nothing where no column is measured with values"
            columns = f"--columns name,type,macs,{','.join(MEASURED)}"
            measure_it = columns if invocation().argv else f"measure={MEASURED}"
            raise UsageError(message, f"leave out --{name} {shlex.quote(value)} or {measure_it}")


def about_values(loaded: LoadedModel, measure: Sequence[str]) -> tuple[Notice, ...]:
    """Warn where values are measured of a model that was given none but random weights."""
    is_known = any(warning.code == "random_weights" for warning in loaded.warnings)
    is_random = loaded.info.weights.resolved == "random" and any(True for _ in loaded.module.parameters())
    if not is_random or is_known or not {"zero", "gradient"} & set(measure):
        return ()
    message = (
        f"'{loaded.info.name}' has random weights, so its zeros and gradients mean little: --weights auto"
    )
    return (Notice("random_weights", message),)


def with_measured(
    rows: Sequence[LayerShape],
    loaded: LoadedModel,
    given: PythonInputs,
    inputs: Inputs,
    measure: Sequence[str],
    progress: Progress,
) -> tuple[LayerShape, ...]:
    """Return rows with what was asked for: the time of the first batch, and what `stats` and `grads` say of the
    same input.

    Raises:
        CannotRunError: the model cannot be differentiated (exit 4).
    """
    found: dict[_Key, dict[str, float]] = defaultdict(dict)
    with counting(progress, "measured", len(measure)) as step:
        for one in dict.fromkeys(measure):
            if one == "time":
                values = measure_times(loaded.module, first_of(inputs, loaded).args)
                field = "time_ms"
            else:
                field = "zero_fraction" if one == "zero" else "grad_norm"
                values = (_zeros if one == "zero" else _gradients)(loaded, given)
            for key, value in values.items():
                found[key][field] = value
            step()
    return tuple(replace(row, **found.get((row.name, row.call), {})) for row in rows)  # type: ignore[arg-type]


def measure_times(model: nn.Module, args: Arguments) -> dict[_Key, float]:
    """Return the milliseconds of every call with everything in it: the median of some forwards behind a first one.

    An accelerator is waited for before and after every call, so that its work counts where it belongs; that, and
    the hooks of what is inside, is in the times of the layers around.
    """
    timer = _Timer(_devices(model))
    with HookSession(model, [timer]) as session:
        session.run(args)
        timer.times.clear()
        for _ in range(_FORWARDS):
            session.run(args)
    return {key: 1000 * median(seconds) for key, seconds in timer.times.items()}


class _Timer(Observer):
    """Notes how long every call takes."""

    def __init__(self, accelerators: Sequence[torch.device]) -> None:
        self.times: dict[_Key, list[float]] = defaultdict(list)
        self._accelerators = accelerators
        self._started: list[float] = []

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._started[call.depth :] = [self._now()]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.times[call.name, call.index].append(self._now() - self._started[call.depth])

    def _now(self) -> float:
        for device in self._accelerators:
            torch.get_device_module(device).synchronize(device)
        return time.perf_counter()


def _devices(model: nn.Module) -> list[torch.device]:
    found = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return [device for device in found if device.type not in ("cpu", "meta")]


def _zeros(loaded: LoadedModel, given: PythonInputs) -> dict[_Key, float]:
    """Return the share of zeros among the finite values of every call's output, over all its tensors."""
    from modelscope_cli.analysis.activations.stats import stats

    zeros: dict[_Key, float] = defaultdict(float)
    counts: dict[_Key, int] = defaultdict(int)
    for row in stats(loaded, given, layer=_every_layer(loaded), columns=("zero",)).layers:
        if row.zero_fraction is not None:
            n = row.numel - row.nan_count - row.inf_count
            zeros[row.name, row.call] += n * row.zero_fraction
            counts[row.name, row.call] += n
    return {key: zeros[key] / n for key, n in counts.items() if n}


def _gradients(loaded: LoadedModel, given: PythonInputs) -> dict[_Key, float]:
    """Return the norm of the gradient at every call's output, over all its tensors."""
    from modelscope_cli.analysis.gradients.grads import grads

    squares: dict[_Key, float] = defaultdict(float)
    for row in grads(loaded, given, layer=_every_layer(loaded)).activations:
        if row.grad_norm is not None:
            squares[row.name, row.call] += row.grad_norm**2
    return {key: math.sqrt(square) for key, square in squares.items()}


def _every_layer(loaded: LoadedModel) -> tuple[str, ...]:
    """Return patterns for the model itself and for all layers in it, where it has any."""
    (model, _), *inner = list_layers(loaded.module)
    return (f"type:{model.type}", *(["*"] if inner else []))
