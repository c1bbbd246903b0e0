"""Ways in which a checkpoint breaks. Each returns a new state dict, or None if it does not apply."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]


@dataclass(frozen=True)
class Given:
    """A trained checkpoint, another training of the same network, and the network as made."""

    state: State
    other: State
    fresh: nn.Module
    images: Tensor
    draw: random.Random

    @property
    def weights(self) -> list[str]:
        """The names of the weights of convolutions and linear layers, but not of the last."""
        return [name for name, x in self.state.items() if x.ndim > 1 and name.endswith("weight")][:-1]

    @property
    def norms(self) -> list[str]:
        return [n for n, one in self.fresh.named_modules() if isinstance(one, _BatchNorm)]

    @property
    def halves(self) -> tuple[list[str], list[str]]:
        """The names of the tensors of the first half of the layers, and of the second."""
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self.state))
        first = set(layers[: len(layers) // 2])
        return (
            [name for name in self.state if name.rpartition(".")[0] in first],
            [name for name in self.state if name.rpartition(".")[0] not in first],
        )


Maker = Callable[[Given], State | None]
KINDS: dict[str, dict[str, Maker]] = {}
"""The makers, by kind and name."""


def broken(kind: str) -> Callable[[Maker], Maker]:
    def keep(make: Maker) -> Maker:
        KINDS.setdefault(kind, {})[make.__name__] = make
        return make

    return keep


def changed(given: Given, change: Callable[[str, Tensor], Tensor], names: Any = None) -> State:
    """Return the state with every floating-point tensor, or those with these names, changed."""
    chosen = set(given.state if names is None else names)
    return {
        name: change(name, x.clone()) if name in chosen and x.is_floating_point() else x
        for name, x in given.state.items()
    }


def statistics(given: Given, change: Callable[[str, Tensor], Tensor]) -> State | None:
    """Return the state with every running mean and variance changed; None without any."""
    names = [f"{norm}.running_{which}" for norm in given.norms for which in ("mean", "var")]
    return changed(given, change, names) if names else None


@broken("saved mid-NaN")
def after_a_step_on_nan(given: Given) -> State:
    """One optimizer step on a loss of NaN: every parameter is NaN, and the statistics are whole."""
    parameters = [name for name, _ in given.fresh.named_parameters()]
    return changed(given, lambda _, x: torch.full_like(x, torch.nan), parameters)


@broken("saved mid-NaN")
def nan_in_the_statistics(given: Given) -> State | None:
    """A batch with one NaN went through in train mode; its step was skipped."""
    return statistics(given, lambda _, x: torch.full_like(x, torch.nan))


@broken("saved mid-NaN")
def overflow_of_float16(given: Given) -> State:
    """Weights that grew beyond 65,504, saved as float16."""
    name = given.draw.choice(given.weights)
    return changed(given, lambda _, x: (x * 1e6).half().float(), [name])


@broken("wrong scale")
def one_layer_times_1000(given: Given) -> State:
    return changed(given, lambda _, x: 1e3 * x, [given.draw.choice(given.weights)])


@broken("wrong scale")
def one_layer_divided_by_1000(given: Given) -> State:
    return changed(given, lambda _, x: 1e-3 * x, [given.draw.choice(given.weights)])


@broken("wrong scale")
def every_weight_times_10(given: Given) -> State:
    return changed(given, lambda _, x: 10 * x, given.weights)


@broken("wrong scale")
def average_that_just_began(given: Given) -> State:
    """An exponential average with decay 0.999 after 10 steps from zero, without its correction."""
    return changed(given, lambda _, x: (1 - 0.999**10) * x)


@broken("dead layers")
def bias_far_below_zero(given: Given) -> State | None:
    """A step far too large pushed the biases of one layer to where its activation is zero."""
    names = [n for n, x in given.state.items() if n.endswith("bias") and x.ndim == 1][:-1]
    return changed(given, lambda _, x: x - 50, [given.draw.choice(names)]) if names else None


@broken("dead layers")
def one_layer_of_zeros(given: Given) -> State:
    return changed(given, lambda _, x: 0 * x, [given.draw.choice(given.weights)])


@broken("dead layers")
def second_half_of_zeros(given: Given) -> State:
    return changed(given, lambda _, x: 0 * x, set(given.halves[1]) & set(given.weights))


@broken("unmatched statistics")
def of_another_training(given: Given) -> State | None:
    return statistics(given, lambda name, _: given.other[name])


@broken("unmatched statistics")
def of_other_layers(given: Given) -> State | None:
    """The statistics of norms of the same width, one further; those that are alone keep theirs."""
    widths: dict[int, list[str]] = {}
    for norm in given.norms:
        widths.setdefault(len(given.state[f"{norm}.running_var"]), []).append(norm)
    source = {norm: group[(i + 1) % len(group)] for group in widths.values() for i, norm in enumerate(group)}
    if all(norm == other for norm, other in source.items()):
        return None

    def of(name: str, x: Tensor) -> Tensor:
        norm, _, which = name.rpartition(".")
        return given.state[f"{source[norm]}.{which}"]

    return statistics(given, of)


@broken("unmatched statistics")
def reset(given: Given) -> State | None:
    """`reset_running_stats` was called before saving."""
    return statistics(given, lambda name, x: torch.full_like(x, float(name.endswith("var"))))


@broken("unmatched statistics")
def of_raw_images(given: Given) -> State | None:
    """Estimated anew, on images from 0 to 255."""
    if not given.norms:
        return None
    model = copy.deepcopy(given.fresh)
    model.load_state_dict(given.state)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        model.train()((given.images * 0.25 + 0.45) * 255)
    return dict(model.state_dict())


@broken("unmatched statistics")
def deviations_as_variances(given: Given) -> State | None:
    return statistics(given, lambda name, x: x.sqrt() if name.endswith("var") else x)


@broken("unmatched statistics")
def before_normalisation_by_the_mean(given: Given) -> State | None:
    """Synchronised over eight processes by a sum instead of a mean."""
    return statistics(given, lambda _, x: 8 * x)


@broken("merged badly")
def average_of_two_trainings(given: Given) -> State:
    return changed(given, lambda name, x: (x + given.other[name]) / 2)


@broken("merged badly")
def sum_of_two_trainings(given: Given) -> State:
    return changed(given, lambda name, x: x + given.other[name])


@broken("merged badly")
def task_vector_too_long(given: Given) -> State:
    """The difference from another checkpoint, added ten times."""
    return changed(given, lambda name, x: x + 10 * (x - given.other[name]) if "var" not in name else x)


def _rounded(x: Tensor, step: Tensor, most: int) -> Tensor:
    return (x / step).round().clamp(-most - 1, most)


@broken("quantised badly")
def eight_bits_with_an_outlier(given: Given) -> State:
    """One scale for a tensor, by a maximum 100 times that of the rest."""

    def change(_: str, x: Tensor) -> Tensor:
        step = 100 * x.abs().max() / 127
        return _rounded(x, step, 127) * step

    return changed(given, change, given.weights)


@broken("quantised badly")
def three_bits(given: Given) -> State:
    def change(_: str, x: Tensor) -> Tensor:
        step = x.abs().max() / 3
        return _rounded(x, step, 3) * step

    return changed(given, change, given.weights)


@broken("quantised badly")
def without_its_scale(given: Given) -> State:
    """The integers, read as weights."""
    return changed(given, lambda _, x: _rounded(x, x.abs().max() / 127, 127), given.weights)


@broken("quantised badly")
def without_its_zero_point(given: Given) -> State:
    return changed(given, lambda _, x: x + x.abs().max(), given.weights)


@broken("half-copied")
def second_half_as_made(given: Given) -> State:
    """Prefixes that matched nothing, with strict=False."""
    return {**given.state, **{n: given.fresh.state_dict()[n] for n in given.halves[1]}}


@broken("half-copied")
def first_half_as_made(given: Given) -> State:
    return {**given.state, **{n: given.fresh.state_dict()[n] for n in given.halves[0]}}


@broken("half-copied")
def buffers_alone(given: Given) -> State | None:
    """The parameters had a prefix, such as `module.`, and the buffers none."""
    fresh = dict(given.fresh.named_parameters())
    return (
        {n: fresh[n].detach() if n in fresh else x for n, x in given.state.items()} if given.norms else None
    )


@broken("half-copied")
def parameters_alone(given: Given) -> State | None:
    """`model.parameters()` were copied, such as into an average, and the buffers were not."""
    if not given.norms:
        return None
    parameters = {n for n, _ in given.fresh.named_parameters()}
    return {n: x if n in parameters else given.fresh.state_dict()[n] for n, x in given.state.items()}
