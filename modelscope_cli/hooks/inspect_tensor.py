"""The actions that only look at a tensor: what `print` says of it, and what `raise-on-nan` refuses."""

from torch import Tensor

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.spec import HookSpec
from modelscope_cli.records.naming import dtype_name


def describe(tensor: Tensor) -> str:
    """Return one line: shape, dtype and the distribution of the finite values."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    dtype = dtype_name(tensor.dtype)
    if tensor.is_complex():
        return f"{shape} {dtype}"
    values = tensor.detach().double()
    finite = values[values.isfinite()]
    n_nan, n_inf = int(values.isnan().sum()), int(values.isinf().sum())
    non_finite = [f"{n} {word}" for n, word in ((n_nan, "NaN"), (n_inf, "infinite")) if n]
    if not finite.numel():
        return ", ".join([f"{shape} {dtype}", "no finite value", *non_finite])
    figures = f"mean {finite.mean():.4g}, std {finite.std(correction=0):.4g}"
    return ", ".join(
        [f"{shape} {dtype}", figures, f"{finite.amin():.4g} .. {finite.amax():.4g}", *non_finite]
    )


def refuse_nan(spec: HookSpec, tensor: Tensor, where: str) -> None:
    """Refuse a tensor with NaN in it.

    Raises:
        CannotRunError: names the call and counts them (exit 4).
    """
    n_nan = int(tensor.isnan().sum())
    if n_nan:
        message = f"--hook '{spec}': {n_nan:,} of {tensor.numel():,} values are NaN: {where}"
        cure = str(spec).replace("raise-on-nan", "nan-to-num", 1)
        raise CannotRunError(message, f"--hook '{cure}'   continues with zeros in their place")
