"""The gradients of one optimizer from step to step: whether they are cleared, lost, scaled or shrunk."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import le, lt
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.watching.parameters import Stepper, norm_of, parameters_of

# Steps whose gradients are compared; few, as it takes time.
_CYCLES = 16
_MOST_LOOKS = 64  # at gradients before they are read
_ROUNDED = 1.01  # times a norm
_PROBES = 4  # parameters of an optimizer that represent all of them
_AVERAGES = "step", "exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf", "mu_product"
_MISUSES = "uncleared", "emptied", "discarded", "scaled", "shrunk"
COUNTED = *_MISUSES, "restored", "remade", "began", "ended"


@dataclass(slots=True)
class Cycle:
    """The gradients of one optimizer, which may be inferred, from step to step."""

    optimizer: "weakref.ref[Stepper]"
    made: str | None = None  # the line that created it; None if it was created before the recorder
    follows: "Cycle | None" = None  # the optimizer of that line that had stepped last by then
    n: int = 0  # steps that were compared, with a backward pass before each
    # Those in which the gradients of the previous step were never cleared; for a step that evaluates a
    # closure several times, those of the previous evaluation
    uncleared: int = 0
    emptied: int = 0  # those with gradients after the backward pass and none at the step
    discarded: int = 0  # those after several backward passes, each of which began without gradients
    scaled: int = 0  # those whose gradients were still multiplied by the factor of a gradient scaler
    shrunk: int = 0  # those in which gradients became smaller before a gradient scaler unscaled them
    restored: int = 0  # steps by averages of earlier ones, after the first weights were loaded again
    is_loaded: bool = False  # whether they have been since the last step
    remade: int = 0  # optimizers that took one step and were made again for the same parameters
    began: int = -1  # steps of all optimizers before its first one, and before its last one; -1 without one
    ended: int = -1
    n_steps: int = 0
    _n_taken: int = 0  # steps of the optimizers before this one
    _probes: list["weakref.ref[Tensor]"] = field(default_factory=list)
    _looks: list[Deferred[None]] = field(default_factory=list)
    _n_backward: int = 0
    _n_clear: int = 0
    _n_evaluated: int = 0
    _has_closure: bool = False
    _has_gradient: bool = False
    _left: list[float] = field(default_factory=list)  # norms of the gradients after the last backward pass
    _before: list[float] = field(default_factory=list)  # the same before it
    _scale: float = 1.0
    _is_unscaled: bool = False  # whether a gradient scaler has since divided them by its factor
    _first: "weakref.ref[Tensor] | None" = None  # the first parameter

    def before_backward(self) -> None:
        # Gradients of an inferred step count as cleared if they changed.
        is_inferred = not isinstance(self.optimizer(), Optimizer)

        def judge(norms: list[float]) -> None:
            self._before = norms
            self._n_clear += not any(norms) or (is_inferred and norms != self._left)

        self._look(judge)

    def after_backward(self, scale: float) -> None:
        def judge(norms: list[float]) -> None:
            if norms != self._before:  # else the backward pass of another model
                self._n_backward += 1
                self._left, self._scale, self._has_gradient = norms, scale, any(norms)
            elif not any(norms):
                self._has_gradient = False  # cleared before the backward pass of another model

        self._look(judge)

    def before_unscaling(self) -> None:
        def judge(norms: list[float]) -> None:
            self._is_unscaled = True
            is_same_set = self._n_backward > 0 and len(norms) == len(self._left)
            self.shrunk += is_same_set and all(map(lt, norms, self._left))

        self._look(judge)

    def before_step(self) -> None:
        if self.is_loaded:
            probe = self._probes[-1]() if self._probes else None
            values = getattr(self.optimizer(), "state", {}).get(probe, {}) if probe is not None else {}
            self.restored += any(values.get(name) is not None for name in _AVERAGES)
            self.is_loaded = False
        is_inferred = not isinstance(self.optimizer(), Optimizer)  # such a step is seen later
        # A fused optimizer unscales the gradients itself.
        is_unscaling = getattr(self.optimizer(), "grad_scale", None) is not None

        def judge(norms: list[float]) -> None:
            self._has_closure = not self._n_backward
            if self._n_backward:
                self.n += 1
                self.uncleared += not self._n_clear
                self.discarded += 1 < self._n_backward <= self._n_clear
                if not is_inferred:
                    self.emptied += self._has_gradient and not any(norms)
                    is_unscaled = self._scale == 1 or is_unscaling or self._is_unscaled
                    divided = [_ROUNDED * norm / self._scale for norm in self._left]  # by the script itself
                    self.scaled += any(norms) and not is_unscaled and not all(map(le, norms, divided))

        self._look(judge)

    def after_step(self, n_before: int) -> None:
        self.began, self.ended = n_before if self.began < 0 else self.began, n_before
        evaluated = self._count_evaluations()
        n = evaluated - self._n_evaluated

        def judge(norms: list[float]) -> None:
            if self._has_closure and self._n_backward:
                self.n += 1
                # A closure clears gradients before each evaluation.
                self.uncleared += not self._n_clear or (n > 1 and 2 * self._n_clear <= n)
            self._n_backward, self._n_clear, self._has_gradient = 0, 0, False
            self._is_unscaled = False

        self._look(judge, with_norms=False)
        self.n_steps, self._n_evaluated = self.n_steps + 1, evaluated
        if not self._probes:
            held = self.held()
            chosen = [p for p in held if p.grad is not None] or [p for p in held if p.requires_grad]
            last = len(chosen) - 1
            indices = {round(i * last / (_PROBES - 1)) for i in range(_PROBES)} if chosen else set()
            self._probes = [weakref.ref(chosen[index]) for index in sorted(indices)]
        if self.made is not None and self._first is None and (parameters := self.held()):
            self._first = weakref.ref(parameters[0])

    def _look(self, judge: Callable[[list[float]], None], *, with_norms: bool = True) -> None:
        """Have the present norms of some gradients judged, when they are read."""
        if self._probes and self.n < _CYCLES:
            alive = [p for probe in self._probes if (p := probe()) is not None] if with_norms else []
            norms = numbers(norm_of(p.grad) for p in alive if p.grad is not None)
            self._looks.append(norms.then(lambda norms: judge(norms) if self.n < _CYCLES else None))
            if len(self._looks) >= _MOST_LOOKS:
                self.read()()

    def read(self) -> Deferred[list[None]]:
        """Judge the gradients that were looked at, in that order."""
        looks, self._looks = self._looks, []
        return joined(looks)

    def goes_on_as(self, other: "Cycle", is_again: bool) -> bool:
        """Continue with an optimizer created at the same line for the same parameters, or for those of a model that
        was made again; return whether it was."""
        parameters = other.held()
        if self._first is None or not parameters or not (is_again or self._first() is parameters[0]):
            return False
        self.optimizer = other.optimizer
        if is_again:
            self._probes, self._first = [], weakref.ref(parameters[0])
        else:
            self.remade += self.n_steps == self._n_taken + 1
        self._n_taken = self.n_steps
        return True

    def held(self) -> list[Tensor]:
        optimizer = self.optimizer()
        return [] if optimizer is None else parameters_of(optimizer)

    def _count_evaluations(self) -> int:
        """Return the number of closure calls of LBFGS so far, which it keeps with its first parameter."""
        first: Any = next(iter(getattr(self.optimizer(), "state", {}).values()), {})
        return int(first.get("func_evals", 0)) if isinstance(first, dict) else 0
