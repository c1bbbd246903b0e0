"""A model as training soon makes it: what begins as next to nothing on purpose gets its usual size for a moment.

Zero-initialised heads, the B of LoRA, the scale of the last norm of a residual block, LayerScale: each of them
holds back the signal or the gradient of everything on the other side, at the first step and no later.
"""

import math
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from modelscope_cli.records.check_evidence import Backward
from modelscope_cli.records.grads import mark

# Of its usual size: what is smaller was made so. LayerScale begins at 1e-6 to 1e-4, heads at 0 to 1e-3 of it;
# weights of standard deviation 0.02, the smallest in use, come to 0.14 in a 7 x 7 depthwise convolution.
_NEXT_TO_NOTHING = 1e-2


class Awake:
    """Wakes resting parameters of a model; on leaving, all of them are what they were, to the bit."""

    def __init__(self, model: nn.Module) -> None:
        self._resting = {name: p for name, p in model.named_parameters() if _is_resting(name, p)}
        self._values: list[tuple[nn.Parameter, Tensor]] = []

    @property
    def has_resting(self) -> bool:
        """Whether there is anything that may be woken."""
        return bool(self._resting)

    @property
    def has_woken(self) -> bool:
        return bool(self._values)

    def wake(self, backward: Backward) -> bool:
        """Give the parameters their size that a step of training would move, and tell whether there were any.

        One that no gradient arrives at stays what it is: training would not move it either.
        """
        before = len(self._values)
        for row in backward.parameters:
            is_moved = bool(row.grad_norm) and not mark(row.grad_norm or 0.0, backward.output_grad_norm)
            if is_moved and row.name in self._resting:
                parameter = self._resting.pop(row.name)
                self._values.append((parameter, parameter.data))
                parameter.data = _usual(parameter)
        return len(self._values) > before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parameter, value in self._values:
            parameter.data = value


def _is_resting(name: str, parameter: nn.Parameter) -> bool:
    """Tell what is next to nothing and not a bias, which usually begins at zero and holds nothing back."""
    is_value = parameter.is_floating_point() and not parameter.is_meta and parameter.numel() > 0
    if not is_value or "bias" in name.rpartition(".")[2]:
        return False
    rms = torch.linalg.vector_norm(parameter.detach(), dtype=torch.float32) / math.sqrt(parameter.numel())
    return bool(rms < _NEXT_TO_NOTHING * _usual_rms(parameter))


def _usual_rms(parameter: Tensor) -> float:
    """Return 1 for scales, however they are shaped, and for weights what keeps the size of a signal."""
    if parameter.numel() == max(parameter.shape, default=1):
        return 1.0
    return 1 / math.sqrt(parameter.numel() / parameter.shape[0])


def _usual(parameter: Tensor) -> Tensor:
    if parameter.numel() == 1:
        return torch.ones_like(parameter)
    return torch.randn_like(parameter) * _usual_rms(parameter)
