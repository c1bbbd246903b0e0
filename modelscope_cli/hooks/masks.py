"""Masks over weights, put in place by hooks while the model runs and taken out when it has."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.hooks.session import Intervention

Masks = Mapping[nn.Parameter, Tensor]


class WeightMasks(Intervention):
    """Runs the model with `mask * weight` in the place of every masked parameter.

    The hooks are those of the model itself, around its whole forward: a weight that a layer above reads by
    itself, such as the `out_proj` of an attention, is masked like any other, and so is a weight that two layers
    share. The parameters are never written to; others stand in for them, under the same names, and only while
    the forward runs.

    Attributes:
        masks: what the next forward runs with: for each parameter ones and zeros of its shape, on its device.
    """

    def __init__(self, masks: Masks | None = None) -> None:
        self.masks: Masks = masks or {}
        self._replaced: list[tuple[nn.Module, str, nn.Parameter]] = []

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        if name:
            return ()
        return (
            module.register_forward_pre_hook(lambda model, _: self._put_in(model)),
            module.register_forward_hook(lambda *_: self._take_out(), always_call=True),
        )

    def detach(self) -> None:
        self._take_out()  # Ctrl-C is no Exception: no hook is called for it

    def _put_in(self, model: nn.Module) -> None:
        self._take_out()
        masked = {weight: masked_weight(weight, mask) for weight, mask in self.masks.items()}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if parameter in masked:
                    self._replaced.append((module, name, parameter))
                    setattr(module, name, masked[parameter])

    def _take_out(self) -> None:
        for module, name, parameter in self._replaced:
            setattr(module, name, parameter)
        self._replaced.clear()


def masked_weight(weight: Tensor, mask: Tensor) -> nn.Parameter:
    """Return what stands in for a weight: the product that `torch.nn.utils.prune` makes."""
    with torch.no_grad():
        product = mask.to(weight.dtype) * weight
    return nn.Parameter(product, requires_grad=weight.requires_grad)
