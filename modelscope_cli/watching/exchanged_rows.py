"""The loss for the predictions of other samples, which a hand-written loss has to be compared with.

The functions between a model's output and `backward()` are noted in a few steps. Then they are computed again with
the rows of the output in random order, without gradients, on the tensors that the script has computed anyway.
"""

import contextlib
import math
import statistics
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks import torch_private
from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records.naming import some
from modelscope_cli.records.watch import RANGE, TAUGHT
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching import hand_written
from modelscope_cli.watching.criteria import PICKED
from modelscope_cli.watching.hand_written import Call, tensors_of
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.parameters import is_sharded
from modelscope_cli.watching.uses import FunctionMode

_FIRST = 32  # step: what is compiled has been by then
_FEWEST = 4  # rows of an output that are exchanged
_ORDERS = 2  # random orders of the rows in each step
_MOST_CALLS, _MOST_OUTPUTS = 256, 8  # of functions; of models
_RECORDS = 8  # steps
_CERTAIN = 4  # steps in a row in which the loss rises clearly, or is the same when it is computed again
_PROVEN = 6.0  # mean rise in standard errors: no need to exchange rows again
_SLIGHT, _SURE = 0.2, 4.0  # mean rise in differences of the loss between batches, and in standard errors
_CLEAR = 0.1  # mean rise as a share of the loss, whatever its error
_MOST_VALUES = 1 << 20  # of an output
_FREE = 0.5  # root mean square of the rises, in differences; our measurement: 0.3 if unrelated, 0.9 else
_SAME = 1e-4  # share of the loss by which it may differ when it is computed again
# Functions that change what they are given, that a random state or the graph enters, or that run a module's code.
_BARRED = {
    *("__setitem__", "grad", "backward", "batch_norm", "instance_norm", "feature_alpha_dropout"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "rrelu", "gumbel_softmax"),
    *("bernoulli", "multinomial", "normal", "poisson", "rand_like", "randn_like", "randint_like"),
}


class Tape(threading.local):
    """The functions from the outputs of models to the loss, in this thread.

    Args:
        tell: called with the kind and the message of what a loss shows.
        taught: returns in words that the first model is a teacher of the second, and trained; else None.
    """

    def __init__(self, tell: Callable[[str, str], object], taught: Callable[..., str | None]) -> None:
        self._tell, self._taught = tell, taught
        self.see_criterion: Callable[..., object] = lambda *call: None  # of the labels in a hand-written loss
        warnings.filterwarnings("ignore", module=__name__)  # the script's own call has given them
        self._mode = FunctionMode(self.see)
        self._compared: list[Deferred[None]] = []  # since the last step
        self._n_agreed = 0  # losses that were the same when they were computed again
        # Whether a loss depends on which output belongs to which sample: for certain, and clearly
        self._is_proven = self._is_over = False
        self._known = set[str]()  # models
        self._n_read = 0  # losses since the first pass of the last of them
        self._is_picking = False  # whether labels pick one score of each row
        # Of the models that ran since the last backward pass: model, number of its call, tensors
        self.outputs: list[tuple[WatchedModel, int, list[Tensor]]] = []
        self._forget()

    def _forget(self) -> None:
        self.outputs, self._calls = [], list[Call]()
        self._derived: dict[int, Tensor] = {}  # from an output, by id
        self._owners: dict[int, WatchedModel] = {}  # of the outputs, by id
        self._is_barred = False

    def go_on(self) -> None:
        """Note functions from now on, if any output can be exchanged."""
        if self.outputs and not self._is_barred:
            self._mode.start()

    def pause(self) -> None:
        """Note nothing inside a module with parameters, whose output is exchanged itself."""
        self._mode.stop()

    def drop(self) -> None:
        """Stop and forget, at the latest before a step."""
        self._mode.stop()
        self._forget()

    def begin(self, model: WatchedModel, output: Any, is_training: bool) -> None:
        """Take the output of a model that has just run, whose gradient is needed; exchange it if in training."""
        tensors = [x for _, x in tensors_in(output) if x.is_floating_point() and x.requires_grad and x.ndim]
        tensors = [x for x in tensors if len(x) == len(tensors[0]) >= _FEWEST and not is_sharded(x)]
        is_small = sum(x.numel() for x in tensors) <= _MOST_VALUES and len(self.outputs) < _MOST_OUTPUTS
        if model.label not in self._known:  # one that learns from a model which was trained before
            self._known.add(model.label)
            self._is_over, self._is_proven, self._n_read = False, False, 0
        if (self._is_over and not self._is_picking) or model.step < _FIRST or torch_private.has_compiled():
            return
        self._is_barred |= is_training and not is_small
        if tensors and (is_small or is_training):
            self._owners |= {id(x): model for x in tensors}
            self._derived.update((id(x), x) for x in tensors)
        if tensors and is_training:
            self.outputs.append((model, Counter(id(one) for one, *_ in self.outputs)[id(model)], tensors))

    def see(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Note a call that depends on an output."""
        if self._is_barred or not any(id(x) in self._derived for x in tensors_of((args, kwargs))):
            return
        name = getattr(function, "__name__", "")
        if name.endswith("_like"):
            return  # it takes the shape only
        is_in_place = name.endswith("_") and (not name.endswith("__") or name.startswith("__i"))
        is_in_place |= kwargs.get("out") is not None
        results = tensors_of(output)
        if name in _BARRED or (is_in_place and name not in ("__index__", "__invert__")):
            self._is_barred = name != "backward"
        elif len(self._calls) >= _MOST_CALLS:
            self._is_barred = True
        elif results:
            self._calls.append((function, args, kwargs, output))
            self._derived.update((id(x), x) for x in results)

    def compare(self, loss: Any) -> None:
        """Record by how much a loss rises when the rows of each output are exchanged, in the model."""
        is_known = isinstance(loss, Tensor) and loss.numel() == 1 and id(loss) in self._derived
        if is_known and not self._is_barred:
            calls = self._leading_to(loss)
            # Some functions cannot be called again, such as one with a state of its own.
            with contextlib.suppress(Exception), torch.no_grad():
                self._read_calls(calls)
                again = loss.detach().reshape(())
                if self._n_agreed < _CERTAIN and not self._is_over:
                    again = self._computed_again(calls, loss, None)
                # On a device it is seen when it is read.
                is_same = loss.device.type != "cpu" or _agree(float(again), float(loss))
                if is_same and self.outputs and not self._is_over:
                    self._compared.append(self._exchange(calls, loss, again))
        self.drop()  # `loss.backward()` runs inside the mode and puts it back

    def _read_calls(self, calls: list[Call]) -> None:
        """Tell what the calls show by themselves: in the first losses, and the labels in each."""
        self._n_read += 1
        is_first = self._n_read <= _CERTAIN
        found = hand_written.labels_in(calls, self._derived) if is_first or self._is_picking else None
        with torch.enable_grad():
            if found is not None and (logarithms := hand_written.log_probabilities(found[0])) is not None:
                self._is_picking, picked = True, logarithms.gather(1, found[1][:, None])
                self.see_criterion(PICKED, logarithms, found[1], -picked.mean(), {})
        if is_first and (words := hand_written.subtracted(calls)) is not None:
            self._tell(RANGE, f"{words} ({place_of_caller()})")
        for teacher, student in hand_written.only_compared(calls, self._owners) if is_first else ():
            if (words := self._taught(teacher, student)) is not None:
                self._tell(TAUGHT, words)

    def read(self) -> Deferred[list[None]]:
        """Record the comparisons so far in the models."""
        compared, self._compared = self._compared, []
        return joined(compared)

    def _exchange(self, calls: list[Any], loss: Tensor, again: Tensor) -> Deferred[None]:
        generator = torch.Generator().manual_seed(len(calls) + self.outputs[0][0].step)
        losses, outputs = [loss.detach().reshape(()), again], [one[:2] for one in self.outputs]
        losses.append(self._computed_again(calls, loss, self._as_one_point()))
        for _, _, tensors in self.outputs:
            for _ in range(0 if self._is_proven else _ORDERS):
                order = torch.randperm(len(tensors[0]), generator=generator)
                changed = {id(x): x[order.to(x.device)] for x in tensors}
                losses.append(self._computed_again(calls, loss, changed))

        def record(fetched: list[float]) -> None:
            given, plain, of_one_point, *exchanged = fetched
            if not _agree(plain, given):
                return
            self._n_agreed += 1
            if math.isfinite(of_one_point):
                outputs[0][0].of_one_point.append(of_one_point)
            for place, (model, number) in enumerate(outputs if exchanged else ()):
                rises = [one - plain for one in exchanged[place * _ORDERS : (place + 1) * _ORDERS]]
                rise = sum(rises) / _ORDERS
                if math.isfinite(rise) and max(map(abs, rises)) > _SAME * abs(plain):
                    seen = model.exchanged.setdefault(number, [])
                    seen.append((rise, plain))
                    is_clear = [rise > _CLEAR * abs(loss) for rise, loss in seen[-_CERTAIN:]]
                    self._is_over |= all(is_clear) and len(is_clear) == _CERTAIN
                    own = [rise for rise, _ in seen[-_RECORDS:]]
                    self._is_proven |= len(own) == _RECORDS and _in_errors(own) > _PROVEN

        return numbers(losses).then(record)

    def _as_one_point(self) -> dict[int, Tensor]:
        """Return the outputs, by id, as if each model had mapped every sample to its first output."""
        points: dict[Any, Tensor] = {}
        return {
            id(x): points.setdefault((id(model), place, x.shape[1:]), x[:1]).expand_as(x)
            for model, _, tensors in self.outputs
            for place, x in enumerate(tensors)
        }

    def _leading_to(self, loss: Tensor) -> list[Any]:
        needed, calls = {id(loss)}, []
        for call in reversed(self._calls):
            if any(id(x) in needed for x in tensors_of(call[3])):
                needed |= {id(x) for x in tensors_of(call[1:3])}
                calls.append(call)
        return calls[::-1]

    def _computed_again(self, calls: list[Any], loss: Tensor, exchanged: dict[int, Tensor] | None) -> Tensor:
        """Return the loss by the calls that depend on exchanged outputs; by all calls if None."""
        values = dict(exchanged or {})

        def now(one: Any) -> Any:
            return values.get(id(one), one) if isinstance(one, Tensor) else one

        for function, args, kwargs, output in calls:
            if exchanged is None or any(id(x) in values for x in tensors_of((args, kwargs))):
                given, named = (torch_private.map_leaves(one, now) for one in (tuple(args), kwargs))
                result = function(*given, **named)
                pairs = zip(tensors_of(output), tensors_of(result), strict=True)
                values |= {id(old): new for old, new in pairs}
        risen: Tensor = now(loss)
        return risen.detach().reshape(())


def _agree(again: float, plain: float) -> bool:
    return math.isfinite(plain) and abs(again - plain) <= _SAME * abs(plain)


def unrelated_outputs(models: Iterable[WatchedModel]) -> str | None:
    """Describe models whose loss does not rise if their predictions are exchanged; None if any loss rises, or if no
    loss compares samples.

    A loss of both signs that depends on one output may be a reward, centred at zero, which proves nothing; a
    generator that matches distributions gives different samples, which may fit any noise; a loss that diverges
    has a large error.
    """
    rows = {(one.label, n): seen[len(seen) // 3 :] for one in models for n, seen in one.exchanged.items()}
    if not rows or min(map(len, rows.values())) < _RECORDS:
        return None
    losses = [loss for _, loss in max(rows.values(), key=len)]
    noise = statistics.median(abs(after - loss) for loss, after in pairwise(losses))
    rises = [[rise for rise, _ in seen] for seen in rows.values()]
    clear = _CLEAR * statistics.fmean(map(abs, losses))
    is_free = any(statistics.fmean(own) > clear for own in rises) or any(
        math.hypot(*own) > _FREE * noise * len(own) ** 0.5 for own in rises
    )
    is_reward = min(losses) < 0 < max(losses) and len(rows) == 1
    if is_free or is_reward or any(_is_higher(own, noise) for own in rises):
        return None
    names = some(dict.fromkeys(label for label, _ in rows))
    return f"the loss hardly rises when the outputs of {names} are shuffled over the samples of a batch"


def _is_higher(rises: Sequence[float], noise: float) -> bool:
    """Tell whether the mean is above zero for certain, and not by far less than the loss of batches differs."""
    mean, errors = statistics.fmean(rises), _in_errors(rises)
    return errors > 1 and (mean > _SLIGHT * noise or errors > _SURE)


def _in_errors(rises: Sequence[float]) -> float:
    """Return the mean in standard errors."""
    error = statistics.stdev(rises) / math.sqrt(len(rises))
    return statistics.fmean(rises) / error if error else 0.0
