"""Types of slow libraries, for annotations: a type checker sees them, a running program sees `Any`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from torch import Tensor
    from torch import device as Device
    from torch import dtype as DType
    from torch.nn import Module
    from torch.optim import Optimizer
else:
    Device = DType = Figure = Image = Module = Optimizer = Tensor = Any

__all__ = ["DType", "Device", "Figure", "Image", "Module", "Optimizer", "Tensor"]
