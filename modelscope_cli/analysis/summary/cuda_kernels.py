"""A training step as on CUDA where there is no CUDA: the kernel of attention that torch would choose, and a
backward pass without torch's engine, which asks the driver for its devices.

What is assumed of the GPU: compute capability 8.0 or newer, which has every fused kernel of attention.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.hooks.torch_private import as_in_backward

_HALF = (torch.float16, torch.bfloat16)


def chosen_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool) -> str:
    """Return the kernel of `scaled_dot_product_attention`: `flash`, `efficient` or `math`.

    The order and the conditions are those of `select_sdp_backend` in torch's `sdp_utils.cpp`, for tensors that are
    not nested. On GPUs of compute capability 9 and 10 newer versions of torch prefer the kernel of cuDNN to flash,
    which keeps tensors of the same sizes.
    """
    sizes = [tensor.shape[-1] for tensor in (query, key, value)]
    is_usual = query.ndim == key.ndim == value.ndim == 4 and all(t.shape[2] for t in (query, key, value))
    is_aligned = all(t.stride(-1) == 1 for t in (query, key, value))
    if not (is_usual and is_aligned and query.shape[0] == key.shape[0] == value.shape[0]):
        return "math"
    is_skewed = is_causal and query.shape[2] != key.shape[2]
    is_small = len(set(sizes)) == 1 and sizes[0] <= 256
    may_flash = torch.backends.cuda.flash_sdp_enabled() and query.dtype in _HALF
    if may_flash and mask is None and is_small and not is_skewed:
        return "flash"
    step = 8 if query.dtype in _HALF else 4
    is_even = sizes[0] == sizes[1] and not any(size % step for size in sizes)
    may_save = torch.backends.cuda.mem_efficient_sdp_enabled() and query.dtype in (*_HALF, torch.float32)
    return "efficient" if may_save and is_even else "math"


@contextmanager
def attention_of_cuda() -> Iterator[Counter[str]]:
    """Give fused attention of CUDA tensors the kernel that torch would choose, while open.

    Yields how often each was taken.
    """
    taken: Counter[str] = Counter()

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        kernel = chosen_kernel(query, key, value, attn_mask, is_causal=is_causal)
        taken[kernel] += 1
        operators: Any = torch.ops.aten
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
        if kernel == "math":
            return operators._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        if kernel == "flash":  # of head sizes that are multiples of 8
            size = query.shape[-1]
            padded = [F.pad(one, (0, -size % 8)) if size % 8 else one for one in (query, key, value)]
            scale = size**-0.5 if scale is None else scale
            kept = operators._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, scale=scale)
            return kept[0][..., :size]
        if query.shape[1] != key.shape[1]:
            key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
        if attn_mask is not None:
            n = attn_mask.shape[-1]
            if n % 8:
                attn_mask = F.pad(attn_mask, (0, -n % 8))[..., :n]
            attn_mask = attn_mask.expand(*query.shape[:3], n)
        needs_gradient = any(tensor.requires_grad for tensor in (query, key, value))
        return operators._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_gradient, dropout_p, is_causal, scale=scale
        )[0]

    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", attend, "AutogradCUDA")
    try:
        yield taken
    finally:
        library._destroy()


def backward(loss: Tensor, begin: Callable[[int], object]) -> None:
    """Compute gradients of leaves, which have none, in the order of torch's engine, without calling hooks.

    `loss` is detached, and each node of the graph is freed after it ran, unless a tensor still has it.

    Args:
        begin: called with the sequence number of each node before it runs.
    """
    waiting: Counter[Any] = Counter()
    ready: list[tuple[int, int, Any]] = [(0, 0, loss.grad_fn)]
    arrived: dict[Any, dict[int, Tensor]] = {loss.grad_fn: {0: torch.ones_like(loss)}}
    found = [loss.grad_fn]
    loss.detach_()
    while found:
        for child, _ in found.pop().next_functions:  # type: ignore[union-attr]
            if child is not None:
                if child not in waiting:
                    found.append(child)
                waiting[child] += 1
    with torch.no_grad(), as_in_backward():
        while ready:
            node = heappop(ready)[2]
            given = arrived.pop(node, {})
            if hasattr(node, "variable"):
                for gradient in given.values():
                    is_expanded = 0 in gradient.stride()
                    node.variable.grad = gradient.clone() if is_expanded else gradient
                continue
            begin(node._sequence_nr())
            if given:
                gradients = [given.get(n) for n in range(len(node._input_metadata))]
                results = getattr(node, "apply", node)(*gradients)  # `apply` of functions in Python
                _hand_on(node, results if isinstance(results, tuple) else (results,), arrived)
                del gradients, results
            del given
            for child, _ in node.next_functions:
                if child is not None:
                    waiting[child] -= 1
                    if not waiting[child]:
                        del waiting[child]
                        is_leaf = hasattr(child, "variable")
                        order = -(2**63) if is_leaf else -child._sequence_nr()
                        heappush(ready, (order, id(child), child))
            node = child = None


def _hand_on(node: Any, results: Sequence[Tensor | None], arrived: dict[Any, dict[int, Tensor]]) -> None:
    """Add the gradients that a node returned to those that arrived at the nodes after it."""
    for (child, index), gradient in zip(node.next_functions, results, strict=False):
        if child is not None and gradient is not None:
            fitted, sums = _fitted(gradient, child, index), arrived.setdefault(child, {})
            sums[index] = sums[index] + fitted if index in sums else fitted


def _fitted(gradient: Tensor, node: Any, index: int) -> Tensor:
    """Return a gradient in the shape and the dtype of what it is the gradient of; functions may broadcast."""
    wanted = node._input_metadata[index]
    shape = tuple(wanted.shape)
    gradient = gradient if gradient.shape == shape else gradient.sum_to_size(shape)
    return gradient if gradient.dtype == wanted.dtype else gradient.to(wanted.dtype)
