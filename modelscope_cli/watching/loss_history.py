"""What the graphs of the losses show over a run: signs, divergences, rewards under a policy gradient."""

import contextlib
import math
import re
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.records import watch as events
from modelscope_cli.watching import loss_graph
from modelscope_cli.watching.exchanged_rows import unrelated_outputs
from modelscope_cli.watching.loss_graph import Term
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.source_location import frame_of_caller, walk_named

_FEWEST = 8  # losses; values of a variable
_RECORDS, _NEARLY_ALL, _SURE = 12, 0.9, 3.0  # losses; of them; standard errors
_RELATED, _PROPORTIONAL = 0.3, 0.95  # correlation of rewards, of advantages, with slopes
_NO_INFORMATION = 0.01  # nats
_REWARD = re.compile(r"(?i)^(?!.*(cost|neg)).*(?<![a-z])(rewards?|rews?|returns?|rets?|payoffs?)(?![a-z\[])")
_ADVANTAGE = re.compile(r"(?i)^(?!.*(cost|neg)).*(?<![a-z])adv(antages?)?s?(?![a-z\[])")


@dataclass(slots=True)
class LossHistory:
    """What the graphs of the losses show over the steps of a run."""

    n: int = 0  # number of losses
    # Of losses with the wrong sign; that of a reward differs between steps
    factors: set[float] = field(default_factory=set)
    # Of the posterior of a variational autoencoder from its prior, in nats
    divergences: list[Tensor] = field(default_factory=list)
    # By name: sums over variables of the script, one a policy gradient
    rewards: dict[str, list[float]] = field(default_factory=dict)
    # Whether the loss lowers the probabilities of actions with higher rewards; with higher advantages
    are_lowered: list[bool] = field(default_factory=list)
    are_against: list[bool] = field(default_factory=list)

    def see(self, loss: Tensor) -> Iterator[tuple[str, str]]:
        """Take the loss of a step, and yield `(kind, message)` of likely faults if it is written by hand."""
        terms = loss_graph.terms_from(loss.grad_fn)  # walked once
        if (n := loss_graph.summed_over(loss)) > 1:
            words = f"the loss is a sum over {n:,} values, so its gradients are that many times larger"
            yield events.SUMMED, words
        if loss_graph.has_negative_part(terms):
            yield events.NEGATED, "a criterion is subtracted from the loss"
        if (shapes := loss_graph.broadcast_in(loss)) is not None:
            prediction, difference = shapes
            words = f"a prediction of shape {prediction} is compared with a target and broadcast"
            yield events.BROADCAST, f"{words}: the difference has {difference}"
        divergence = loss_graph.divergence_in(terms)
        if (factor := loss_graph.wrong_factor(terms)) is not None:
            if factor in self.factors:
                what = "the KL divergence" if divergence is not None and divergence[0] < 0 else "the value"
                yield events.WRONG_SIGN, f"each step increases {what} that it should decrease"
            self.factors.add(factor)
        self.n += 1
        if self.n <= _FEWEST and divergence is None and loss_graph.has_no_bound(loss):
            words = "the logarithm of a scale, such as a variance or a Jacobian, has the wrong sign"
            yield events.WRONG_SIGN, f"{words} in the loss, which has no lower bound"
        if divergence is not None:
            self.divergences.append(divergence[1])
            if self.n <= _FEWEST and loss_graph.is_latent_cut_off(terms):
                yield events.DETACHED, "only the KL term gives the encoder a gradient: the latent is detached"
        yield from self._see_policy(terms)

    def _see_policy(self, terms: Sequence[Term]) -> Iterator[tuple[str, str]]:
        """Compare the signs of a policy gradient with variables named as rewards and advantages."""
        slopes = loss_graph.slopes_in(terms)
        is_mixed = slopes is not None and bool(slopes.min() < 0 < slopes.max())
        is_policy = is_mixed or bool(loss_graph.clipped(terms))
        if slopes is not None and (frame := frame_of_caller()) is not None:
            rewards = dict(_named(frame, _REWARD))
            if (sign := _strongest(slopes, rewards)) is not None and abs(sign[0]) > _RELATED:
                is_policy = True
                self.are_lowered.append(sign[0] > 0)
                for name, values in rewards.items():
                    self.rewards.setdefault(name, []).append(float(values.sum()))
            if (sign := _strongest(slopes, dict(_named(frame, _ADVANTAGE)))) is not None:
                self.are_against.append(sign[0] > _PROPORTIONAL)
                if len(self.are_against) >= _FEWEST and all(self.are_against):
                    words = f"the loss lowers the probability of actions with a higher `{sign[1]}`"
                    yield events.WRONG_SIGN, words
        if is_policy:
            yield events.POLICY, "the loss is a policy gradient"

    def at_end(self, models: Sequence[WatchedModel]) -> Iterator[tuple[str, str]]:
        """Yield what the run shows as a whole."""
        if (unrelated := unrelated_outputs(models)) is not None:
            yield events.UNRELATED, unrelated
        half = [float(one) for one in self.divergences[len(self.divergences) // 2 :]]
        if len(half) >= _RECORDS and max(half) < _NO_INFORMATION and half[-1] <= 2 * half[0]:
            words = (
                f"the posterior equals the prior for every sample: their KL divergence is {half[-1]:.2g} nats"
            )
            yield events.COLLAPSED, f"{words}, so the latent carries no information about the input"
        n = len(self.are_lowered)
        changes = {name: _change(sums) for name, sums in self.rewards.items() if len(sums) == n >= _RECORDS}
        lowest = min(changes, key=lambda name: changes[name], default="")
        is_certain = changes and sum(self.are_lowered) >= _NEARLY_ALL * n
        if is_certain and max(changes.values()) < _SURE and changes[lowest] < -_SURE:
            sums = self.rewards[lowest]
            first, last = statistics.fmean(sums[: n // 2]), statistics.fmean(sums[-3:])
            words = f"the loss lowers the probability of actions with a higher `{lowest}`, whose sum falls"
            yield events.RETURN_FALLS, f"{words} from {first:.3g} to {last:.3g}"


def _named(frame: FrameType, pattern: re.Pattern[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers in a function, and in the one that called it, whose names fit."""
    for one in (frame, frame.f_back):
        for _, name, value in walk_named(list(one.f_locals.items()) if one is not None else (), 1):
            if pattern.search(name) and not callable(value):
                with contextlib.suppress(Exception):
                    if len(values := _flat(value)) >= _FEWEST:
                        yield name, values


def _flat(value: Any) -> Tensor:
    if isinstance(value, list | tuple | deque):
        return torch.cat([_flat(one) for one in value])
    return torch.as_tensor(value).detach().float().cpu().flatten()


def _strongest(slopes: Tensor, variables: Mapping[str, Tensor]) -> tuple[float, str] | None:
    """Return the correlation of slopes with the variable that is most related to them, and its name."""
    alike = [(name, values) for name, values in variables.items() if len(values) == len(slopes)]
    return max(
        ((_correlation(slopes, values), name) for name, values in alike),
        key=lambda pair: abs(pair[0]),
        default=None,
    )


def _correlation(one: Tensor, other: Tensor) -> float:
    value = float(torch.corrcoef(torch.stack([one, other]))[0, 1])
    return value if math.isfinite(value) else 0.0


def _change(values: Sequence[float]) -> float:
    """Return the difference of the last values from the first half, in standard errors by that half."""
    first, last = values[: len(values) // 2], values[-max(len(values) // 8, 3) :]
    error = statistics.stdev(first) * math.sqrt(1 / len(first) + 1 / len(last))
    return (statistics.fmean(last) - statistics.fmean(first)) / error if error else 0.0
