"""What the graphs of the losses show over a run: signs, divergences, policy gradients."""

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from modelscope_cli.records import watch as events
from modelscope_cli.source_location import frame_of_caller, walk_named
from modelscope_cli.watching import loss_graph
from modelscope_cli.watching.exchanged_rows import unrelated_outputs
from modelscope_cli.watching.loss_graph import Term
from modelscope_cli.watching.model_registry import WatchedModel

_FEWEST = 8  # losses
_RECORDS = 12  # losses
_NO_INFORMATION, _SPIKE = 0.01, 0.05  # nats: in most steps, and in any
_REWARD = re.compile(r"(?i)(?<![a-z])(rewards?|rews?|returns?|rets?|payoffs?|advantages?)(?![a-z])")


@dataclass(slots=True)
class LossHistory:
    """What the graphs of the losses show over the steps of a run."""

    n: int = 0  # number of losses
    # Of losses with the wrong sign; that of a reward differs between steps
    factors: set[float] = field(default_factory=set)
    # Of the posterior of a variational autoencoder from its prior: factor in the loss, and value in nats
    divergences: list[tuple[float, Tensor]] = field(default_factory=list)

    def see(self, loss: Tensor) -> Iterator[tuple[str, str]]:
        """Take the loss of a step, and yield `(kind, message)` of likely faults if it is written by hand."""
        terms = loss_graph.terms_from(loss.grad_fn)  # walked once
        if (n := loss_graph.summed_over(loss)) > 1:
            words = f"the loss is a sum over {n:,} values, so its gradients are {n:,}x as large"
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
        if divergence is not None:
            self.divergences.append(divergence)
            if self.n <= _FEWEST and loss_graph.is_latent_cut_off(terms):
                yield events.DETACHED, "only the KL term gives the encoder a gradient: the latent is detached"
        if self.n <= _FEWEST and _is_policy_gradient(terms):
            yield events.POLICY, "the loss is a policy gradient"

    def at_end(self, models: Sequence[WatchedModel]) -> Iterator[tuple[str, str]]:
        """Yield what the run shows as a whole."""
        if (unrelated := unrelated_outputs(models)) is not None:
            yield events.UNRELATED, unrelated
        if len(self.divergences) >= _RECORDS and not any(factor for factor, _ in self.divergences):
            words = "the weight of the KL divergence is 0 in every step"
            yield events.UNWEIGHTED, f"{words}: the latent is not regularised"
        half = [float(one) for _, one in self.divergences[len(self.divergences) // 2 :]]
        is_silent = len(half) >= _RECORDS and statistics.median(half) < _NO_INFORMATION
        if is_silent and max(half) < _SPIKE and half[-1] <= 2 * half[0]:
            words = f"the posterior equals the prior for every sample: a KL divergence of {half[-1]:.2g} nats"
            yield events.COLLAPSED, f"{words}, so the latent carries no information about the input"


def _is_policy_gradient(terms: Sequence[Term]) -> bool:
    """Tell whether log-probabilities have weights, beside a variable that is named as in a policy gradient."""
    frame = frame_of_caller() if loss_graph.has_weighted_likelihoods(terms) else None
    frames = (frame, frame.f_back) if frame is not None else ()
    roots = [item for one in frames if one is not None for item in one.f_locals.items()]
    return any(_REWARD.search(name) for _, name, _ in walk_named(roots, 1))
