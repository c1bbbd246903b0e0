"""What a script uses that a trial could change, with its lines: seen during the first run of the trials."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.optim import optimizer as optim
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, SequentialSampler

from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.source_location import place_of_caller
from modelscope_cli.watching.trials.criteria import BINARY, CLASSES, Criterion, wrapped_criteria
from modelscope_cli.watching.trials.criterion_changes import is_doubled
from modelscope_cli.watching.trials.gradients import of_clipping
from modelscope_cli.watching.trials.modes import DROPOUTS
from modelscope_cli.watching.trials.optimizers import unusual
from modelscope_cli.watching.trials.roots import Arguments, Models, entered, map_data
from modelscope_cli.watching.trials.weights import size_of_weights

_MOST = 64  # values of a kind that are kept
_MODAL = (nn.modules.dropout._DropoutNd, _BatchNorm)  # layers for which the mode makes a difference


@dataclass(slots=True)
class Survey:
    """What was seen. Places are lines of the script, `train.py:31`, or None.

    Attributes:
        settings: of the first group of each optimizer: class, line, learning rate, weight decay, and by name those
            that are unusual, with their value.
        clips: of each line that clips gradients: the limit, and the median norm before.
        dropout: the highest probability; label_smoothing: the highest.
        criteria: by line, of how many calls the input had an activation that the criterion applies as well.
        autocast, scaler, schedule: lines that make them; loader: line that makes one that goes through its samples
            in order; backward: line that runs backward.
        lowest, highest: learning rate of the steps; scheduled: the highest that a schedule of torch allows;
            slow_steps: at less than a tenth of that.
        evaluating: steps with a model in evaluation mode; training: passes in training mode without gradients.
        frozen, missing: number of parameters, and of these in no optimizer; parameters: number of all.
        weights: see `size_of_weights`.
        uncleared: backward passes that added to gradients by which the optimizer had stepped; steps: how many.
        shape, low, high, mean, std: of the first data with gradients; channels: largest and smallest standard
            deviation of a channel; roughness: how much more images differ from pixel to pixel than if they were
            meant as height, width, channels.
        non_finite: batches with a value that is not finite.
        alike: mean share of the commonest label in a batch, and its share of all.
        criterion: line of the training criterion; model: line that calls the model.
        rows: samples of a batch.
    """

    settings: Sequence[dict[str, Any]] = ()
    clips: dict[str, tuple[float, float]] = field(default_factory=dict)
    dropout: float = 0.0
    label_smoothing: float = 0.0
    criteria: dict[str, int] = field(default_factory=dict)
    autocast: str | None = None
    scaler: str | None = None
    schedule: str | None = None
    loader: str | None = None
    backward: str | None = None
    lowest: float = float("inf")
    highest: float = 0.0
    scheduled: float = 0.0
    slow_steps: int = 0
    evaluating: int = 0
    training: int = 0
    frozen: int = 0
    missing: int = 0
    parameters: int = 0
    weights: tuple[float, str] = (1.0, "")
    uncleared: int = 0
    steps: int = 0
    shape: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    channels: tuple[float, float] = (1.0, 1.0)
    roughness: float = 1.0
    non_finite: int = 0
    alike: tuple[float, float] = (0.0, 0.0)
    criterion: str | None = None
    model: str | None = None
    rows: int = 0

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Survey":
        """Return a survey that `asdict` wrote."""
        found: dict[str, Any] = {
            name: tuple(one) if type(one) is list else one for name, one in document.items()
        }
        found["clips"] = {place: tuple(pair) for place, pair in document["clips"].items()}
        return cls(**found)


class Surveyor:
    """Fills a survey while the script runs.

    Args:
        tell: given the survey after the steps 1, 2, 4 ... and at the end.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self.seen = Survey()
        self._models = Models(self._first)
        self._norms: dict[str, list[float]] = {}
        self._places: dict[int, str | None] = {}
        self._left: list[tuple[Tensor, int, int]] = []
        self._batches: list[float] = []
        self._labels = Counter[int]()
        self._due = 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe while open."""
        backward = torch.autograd.backward

        def adding(*args: Any, **kwargs: Any) -> Any:
            self.seen.backward = self.seen.backward or place_of_caller()
            self.seen.uncleared += any(
                p.grad is not None and id(p.grad) == key and p.grad._version == version
                for p, key, version in self._left
            )
            self._left.clear()
            return backward(*args, **kwargs)

        with ExitStack() as stack:
            stack.enter_context(self._models.installed())
            stack.enter_context(entered(self._enter))
            stack.enter_context(replaced(*wrapped_criteria(self._see_criterion)))
            stack.enter_context(
                replaced(*of_clipping(*map(self._clipping, ("clip_grad_norm_", "clip_grad_value_"))))
            )
            stack.enter_context(replaced(*[(functional, name, self._dropping(name)) for name in DROPOUTS]))
            stack.enter_context(
                replaced(
                    *[
                        (kind, "__init__", self._making(kind, name))
                        for kind, name in (
                            (torch.autocast, "autocast"),
                            (torch.amp.GradScaler, "scaler"),
                            (LRScheduler, "schedule"),
                            (DataLoader, "loader"),
                        )
                    ],
                    (torch.autograd, "backward", adding),
                )
            )
            stack.enter_context(self._placing())
            stack.callback(optim.register_optimizer_step_pre_hook(self._before_step).remove)
            stack.callback(optim.register_optimizer_step_post_hook(self._after_step).remove)
            yield

    def tell(self) -> None:
        """Hand over what was seen so far."""
        for place, norms in self._norms.items():
            self.seen.clips[place] = self.seen.clips[place][0], statistics.median(norms)
        if self._batches:
            share = max(self._labels.values()) / self._labels.total()
            self.seen.alike = statistics.fmean(self._batches), share
        self._tell(asdict(self.seen))

    @contextmanager
    def _placing(self) -> Iterator[None]:
        """Note the line that makes each optimizer."""
        begin = Optimizer.__init__

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            begin(optimizer, *args, **kwargs)
            self._places[id(optimizer)] = place_of_caller()

        with replaced((Optimizer, "__init__", made)):
            yield

    def _first(self, root: nn.Module) -> None:
        far = size_of_weights(root)
        self.seen.weights = max(self.seen.weights, far)
        self.seen.model = self.seen.model or place_of_caller()

    def _enter(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        is_modal = any(isinstance(module, _MODAL) for module in root.modules())
        if torch.is_grad_enabled():
            self.seen.evaluating += is_modal and not root.training
            map_data(args, kwargs, self._see_data)
        else:
            self.seen.training += is_modal and root.training
        return args, kwargs

    def _see_data(self, x: Tensor) -> Tensor:
        finite = x.isfinite()
        is_finite = bool(finite.all())
        self.seen.non_finite += not is_finite
        if not self.seen.shape and is_finite:
            numbers = x.float()
            spreads = numbers.transpose(0, 1 if x.ndim != 3 else 2).flatten(1).std(1)
            seen = self.seen
            seen.shape, seen.rows = tuple(x.shape), len(x)
            seen.low, seen.high = float(numbers.min()), float(numbers.max())
            seen.mean, seen.std = float(numbers.mean()), float(numbers.std())
            seen.channels = float(spreads.max()), float(spreads.min())
            if x.ndim == 4 and x.shape[1] in (3, 4):
                n, channels, height, width = x.shape
                meant = numbers.reshape(n, height, width, channels).permute(0, 3, 1, 2)
                seen.roughness = _roughness(numbers) / max(_roughness(meant), 1e-12)
        return x

    def _see_criterion(self, criterion: Criterion, original: Callable[..., Any]) -> Any:
        value = original(*criterion.args, **criterion.kwargs)
        target = criterion.target
        if isinstance(value, Tensor) and value.requires_grad and isinstance(target, Tensor):
            place = self.seen.criterion = place_of_caller()
            smoothing = criterion.options.get("label_smoothing") or 0.0
            self.seen.label_smoothing = max(self.seen.label_smoothing, smoothing)
            self.seen.rows = self.seen.rows or (len(target) if target.ndim else 0)
            if criterion.kind in (CLASSES, BINARY) and isinstance(criterion.x, Tensor):
                key = str(place)
                self.seen.criteria[key] = self.seen.criteria.get(key, 0) + is_doubled(criterion)
            if criterion.kind == CLASSES and not target.is_floating_point() and target.numel() > 1:
                counts = Counter(target.flatten().tolist())
                self._batches.append(max(counts.values()) / counts.total())
                self._labels += counts
        return value

    def _clipping(self, name: str) -> Any:
        original = getattr(torch.nn.utils, name)

        def clip(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
            kept = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            place = str(place_of_caller())
            gradients = [p.grad for p in kept if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
            self.seen.clips.setdefault(place, (float(limit), norm))
            if len(norms := self._norms.setdefault(place, [])) < _MOST:
                norms.append(norm)
            return original(kept, limit, *args, **kwargs)

        return clip

    def _dropping(self, name: str) -> Any:
        original = getattr(functional, name)

        def drop(input: Tensor, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any) -> Any:
            if training:
                self.seen.dropout = max(self.seen.dropout, p)
            return original(input, p, training, *args, **kwargs)

        return drop

    def _making(self, kind: Any, name: str) -> Any:
        begin = kind.__init__

        def made(made_object: Any, *args: Any, **kwargs: Any) -> None:
            begin(made_object, *args, **kwargs)
            is_off = getattr(made_object, "_enabled", True) is False
            is_shuffled = name == "loader" and not isinstance(made_object.sampler, SequentialSampler)
            if not is_off and not is_shuffled and getattr(self.seen, name) is None:
                setattr(self.seen, name, str(place_of_caller()))

        return made

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen = self.seen
        if not any(one["id"] == id(optimizer) for one in seen.settings):
            group = optimizer.param_groups[0]
            seen.settings = (
                *seen.settings,
                {
                    "id": id(optimizer),
                    "class": type(optimizer).__name__,
                    "place": self._places.get(id(optimizer)),
                    "rate": float(group["lr"]),
                    "weight_decay": max(
                        float(one.get("weight_decay") or 0) for one in optimizer.param_groups
                    ),
                    "unusual": {name: group[name] for name in unusual(optimizer, group)},
                },
            )
            missing = self._models.missing(optimizer)
            by_root = [self._models.parameters(root) for root in self._models.roots]
            seen.missing += sum(p.requires_grad for p in missing)
            trained = [own for own in by_root if any(p.requires_grad for p in own)]
            seen.parameters = sum(map(len, trained))
            seen.frozen = sum(not p.requires_grad for own in trained for p in own)
        rates = [float(one["lr"]) for one in optimizer.param_groups]
        seen.lowest, seen.highest = min(seen.lowest, *rates), max(seen.highest, *rates)
        peaks = [one.get("max_lr", one.get("initial_lr", 0.0)) for one in optimizer.param_groups]
        seen.scheduled = max(seen.scheduled, *map(float, peaks))
        seen.slow_steps += max(rates) < 0.1 * seen.scheduled

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._left += [(p, id(p.grad), p.grad._version) for p in parameters[:2] if p.grad is not None]
        self.seen.steps += 1
        if self.seen.steps >= self._due:
            self._due *= 2
            self.tell()


def _roughness(images: Tensor) -> float:
    """Return the mean difference between neighbouring pixels."""
    return float(
        (images[..., 1:] - images[..., :-1]).abs().mean()
        + (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    )
