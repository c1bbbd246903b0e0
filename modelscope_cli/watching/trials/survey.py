"""What a script uses that a trial could change, with its lines: seen during the first run of the trials."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, SequentialSampler

from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching.clipping import ClipWatch
from modelscope_cli.watching.error_isolation import after, around_steps, replaced
from modelscope_cli.watching.steps import unusual
from modelscope_cli.watching.trials.criteria import CriterionCall, wrapped_criteria
from modelscope_cli.watching.trials.criterion_changes import std_of_logits
from modelscope_cli.watching.trials.modes import DROPOUTS
from modelscope_cli.watching.trials.roots import Arguments, entered, map_data


@dataclass(slots=True)
class Survey:
    """What was seen, beyond what the record of the run says. Places are lines of the script, `train.py:31`.

    Attributes:
        settings: of the first group of each optimizer: class, line, highest and mean learning rate, the rate that
            it was `given` with the `argument` of the script, weight decay, and by name those that are unusual, with
            their value and the usual one.
        clips: of each line that clips gradients: the limit, and the median norm before.
        dropout, label_smoothing: the highest.
        logits: standard deviation of the first ones of a row of classes; 0 where there are none.
        unevenness: quotient of the largest standard deviation of a channel of the inputs and the smallest.
        scaler, schedule: lines that make them; loader: line that makes one that goes through its
            samples in order; backward, criterion, model: lines that call these.
        shuffles: whether a loader goes through its samples at random.
        threads: that operators use; so many trials run side by side as there are cores for.
    """

    settings: Sequence[dict[str, Any]] = ()
    clips: dict[str, tuple[float, float]] = field(default_factory=dict)
    dropout: float = 0.0
    label_smoothing: float = 0.0
    logits: float = 0.0
    unevenness: float = 1.0
    scaler: str | None = None
    schedule: str | None = None
    loader: str | None = None
    shuffles: bool = False
    backward: str | None = None
    criterion: str | None = None
    model: str | None = None
    threads: int = 1


class Surveyor:
    """Fills a survey while the script runs.

    Args:
        tell: given the survey after the steps 1, 2, 4 ... and at the end.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self.seen = Survey()
        self._clips = ClipWatch()
        self._made: dict[int, str | None] = {}  # by optimizer
        self._known: dict[int, dict[str, Any]] = {}  # settings by optimizer, of those that have stepped
        self._n_steps, self._due = 0, 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe while open."""
        backward = torch.autograd.backward

        def placed(*args: Any, **kwargs: Any) -> Any:
            self.seen.backward = self.seen.backward or place_of_caller()
            return backward(*args, **kwargs)

        made: dict[str, Any] = {"scaler": torch.amp.GradScaler, "schedule": LRScheduler, "loader": DataLoader}
        with ExitStack() as stack:
            stack.enter_context(entered(self._enter))
            stack.enter_context(self._clips.installed(lambda: True))
            stack.enter_context(
                replaced(
                    *wrapped_criteria(self._see_criterion),
                    *[(functional, name, self._dropping(getattr(functional, name))) for name in DROPOUTS],
                    *[after(kind, partial(self._place, name)) for name, kind in made.items()],
                    after(ReduceLROnPlateau, partial(self._place, "schedule")),
                    after(Optimizer, self._place_optimizer),
                    (torch.autograd, "backward", placed),
                )
            )
            stack.enter_context(around_steps(self._before_step))
            yield

    def tell(self) -> None:
        """Hand over what was seen so far."""
        self.seen.clips = self._clips.medians()
        self.seen.threads = torch.get_num_threads()
        self._tell(asdict(self.seen))

    def _enter(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if torch.is_grad_enabled() and self.seen.model is None:
            self.seen.model = place_of_caller()
            map_data(args, kwargs, self._see_data)
        return args, kwargs

    def _see_data(self, x: Tensor) -> Tensor:
        numbers = x.detach().float()
        spreads = numbers.transpose(0, 1 if x.ndim != 3 else 2).flatten(1).std(1)
        self.seen.unevenness = float(spreads.max() / spreads.min().clamp_min(1e-9))
        return x

    def _see_criterion(self, criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        value = original(*criterion.args, **criterion.kwargs)
        if isinstance(value, Tensor) and value.requires_grad:
            if self.seen.criterion is None:
                self.seen.criterion = place_of_caller()
                self.seen.logits = std_of_logits(criterion) if isinstance(criterion.x, Tensor) else 0.0
            smoothing = criterion.options.get("label_smoothing") or 0.0
            self.seen.label_smoothing = max(self.seen.label_smoothing, smoothing)
        return value

    def _dropping(self, original: Any) -> Any:
        def drop(input: Tensor, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any) -> Any:
            self.seen.dropout = max(self.seen.dropout, p * training)
            return original(input, p, training, *args, **kwargs)

        return drop

    def _place_optimizer(self, one: Optimizer) -> None:
        self._made[id(one)] = place_of_caller()

    def _place(self, name: str, one: Any) -> None:
        is_off = getattr(one, "_enabled", True) is False
        is_shuffled = name == "loader" and not isinstance(one.sampler, SequentialSampler)
        self.seen.shuffles |= is_shuffled
        if not is_off and not is_shuffled and getattr(self.seen, name) is None:
            setattr(self.seen, name, str(place_of_caller()))

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        rate = float(groups[0]["lr"])
        if id(optimizer) not in self._known:
            found = unusual(optimizer, groups[0])
            argument = "max_lr" if "max_lr" in groups[0] else "initial_lr"  # of OneCycleLR; of any schedule
            self._known[id(optimizer)] = {
                "class": type(optimizer).__name__,
                "place": self._made.get(id(optimizer)),
                "rate": rate,
                "mean": rate,
                "n": 0,
                "given": float(groups[0].get(argument, optimizer.defaults.get("lr", rate))),
                "argument": "max_lr" if argument == "max_lr" else "lr",
                "weight_decay": max(float(one.get("weight_decay") or 0) for one in groups),
                "unusual": {name: (groups[0][name], usual) for name, usual in found.items()},
            }
            self.seen.settings = tuple(self._known.values())
        own = self._known[id(optimizer)]
        own["n"] += 1
        own["rate"] = max(own["rate"], rate)
        own["mean"] += (rate - own["mean"]) / own["n"]
        self._n_steps += 1
        if self._n_steps >= self._due:
            self._due *= 2
            self.tell()
