"""Steps that no optimizer of `torch.optim` took, told from what became of the parameters after a backward pass.

fastai's optimizers, a compiled `step` and `p.data -= lr * p.grad` tell nobody. What a backward pass left is
compared with what is there when the next pass begins: where a parameter is another one, somebody took a step.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.watching.model_registry import WatchedModel
from modelscope_cli.watching.parameters import StepWatch, sample_of


class inferred:  # noqa: N801  the label of an optimizer is the name of its class
    """Stands in for the optimizer of one model that is not one of torch's.

    Attributes:
        watch: what the parameters were after the last backward pass; None at steps that are not recorded.
        grad_scale: of the gradients that the last backward pass left; None for 1.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        self.watch: StepWatch | None = None
        self.grad_scale: Tensor | None = None
        self.param_groups: list[dict[str, Any]] = []
        self._model: nn.Module | None = None  # held until it is known what became of its parameters
        self._weights: list[tuple[Tensor, int, Tensor]] = []

    @property
    def is_open(self) -> bool:
        """Whether a backward pass waits for its step."""
        return self._model is not None

    def open(self, scale: float, is_recorded: bool) -> None:
        """Remember what is there now, right after a backward pass.

        Values too: a write through `.data` leaves a parameter's version as it was.
        """
        model = self._model = self.root()
        parameters = list(filter(_is_plain, model.parameters())) if model is not None else []
        self.param_groups = [{"params": parameters}]
        self.grad_scale = torch.tensor(scale) if scale != 1 else None
        with torch.no_grad():
            self._weights = [(p, version_of(p), sample_of(p).clone()) for p in parameters]
        self.watch = StepWatch(self) if is_recorded else None

    def has_stepped(self) -> bool:
        """Tell whether a parameter is not what it was."""
        with torch.no_grad():
            return any(
                version_of(parameter) != version or not _is_same(sample_of(parameter), sample)
                for parameter, version, sample in self._weights
            )

    def close(self) -> None:
        """Let go of the model and its parameters."""
        self._model, self._weights, self.param_groups, self.watch = None, [], [], None


class InferredSteps:
    """The models whose weights no optimizer of `torch.optim` has stepped so far, and what waits for a step."""

    def __init__(self) -> None:
        self._by_root: dict[int, inferred] = {}

    def remember(
        self, models: list[WatchedModel], scale: float, is_recorded: Callable[[inferred], bool]
    ) -> None:
        """Look at what a backward pass has left, of the models that had a part in it."""
        for model in models:
            root = model.root()
            if model.has_run and not model.is_stepped and root is not None:
                known = self._by_root.get(id(root))
                if known is None or known.root() is not root:
                    known = self._by_root[id(root)] = inferred(root)
                known.open(scale, is_recorded(known))
            model.has_run = False

    def stepped(self) -> Iterator[inferred]:
        """Give those that have taken a step since; they wait no longer when the next one is asked for."""
        for one in self._by_root.values():
            if one.is_open and one.has_stepped():
                yield one
                one.close()

    def forget(self) -> None:
        """Wait for nothing: an optimizer steps that says so."""
        for one in self._by_root.values():
            one.close()


def _is_plain(parameter: Tensor) -> bool:
    """Tell what is trained and holds its own values from what is sharded, quantised or sparse."""
    is_dense = type(parameter) is nn.Parameter and parameter.layout is torch.strided and not parameter.is_meta
    return is_dense and parameter.requires_grad


def _is_same(now: Tensor, before: Tensor) -> bool:
    """Compare values; a model that was moved or cast meanwhile took no step by that."""
    if (now.shape, now.dtype, now.device) != (before.shape, before.dtype, before.device):
        return True
    return torch.equal(now, before)
