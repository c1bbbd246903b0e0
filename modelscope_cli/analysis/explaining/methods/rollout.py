"""Attention rollout: the flow of information through the attention of a transformer, independent of the class.

Abnar & Zuidema 2020, section 3: the product over layers of the mean over heads, averaged with the skip connection.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.dataflow import Dataflow
from modelscope_cli.analysis.explaining.map import Map
from modelscope_cli.analysis.explaining.scored import Scored, UnfitError


class _Attention(Dataflow):
    """Records the attention of every layer, `(1, [heads,] tokens, tokens)`, computed by any function."""

    def __init__(self, image: Tensor) -> None:
        super().__init__(image)
        self.found: list[Tensor] = []

    def compute(
        self, function: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function == "multi_head_attention_forward":  # of nn.MultiheadAttention
            output, shares = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": True})
            self._note(shares)
            return output, shares
        output = func(*args, **kwargs)
        if function == "scaled_dot_product_attention":
            self._note(_shares(*args[:2], **kwargs))
        elif function == "softmax" and output.ndim == 4:
            self._note(output)
        return output

    def _note(self, shares: Tensor) -> None:
        self.found.append(shares.detach().float())


def _shares(query: Tensor, key: Tensor, *_: Any, **kwargs: Any) -> Tensor:
    """Return the attention weights that `scaled_dot_product_attention` does not return."""
    attn_mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
    logits = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
    if attn_mask is not None:
        logits = (
            logits.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
        )
    return logits.softmax(-1)


def rollout(scored: Scored, image: Tensor) -> Map:
    """Return the share of the class token, or of the mean over the patches, that comes from each patch."""
    copy = image.clone()
    with torch.no_grad(), _Attention(copy) as attention:
        scored.run(copy)
    layer = scored.find(scored, image)
    n_patches = math.prod(layer.layout.grid)
    # Windows would be a batch dimension above 1; pooled keys or other tokens would be another number of keys.
    sizes = {(shares.shape[0], *shares.shape[-2:]) for shares in attention.found}
    n_tokens = attention.found[0].shape[-1] if attention.found else 0
    if sizes != {(1, n_tokens, n_tokens)} or n_tokens < n_patches:
        kind = "attention within windows or among other tokens" if sizes else "no attention among all patches"
        raise UnfitError(
            f"rollout needs the same tokens in every layer, and this model has {kind}", "--method hirescam"
        )
    flow = torch.eye(n_tokens, device=image.device)
    for shares in attention.found:
        mixed = shares.flatten(0, -3).mean(0) + torch.eye(n_tokens, device=image.device)
        flow = (mixed / mixed.sum(1, keepdim=True)) @ flow
    prefix = n_tokens - n_patches
    row = flow[0] if layer.is_behind_token else flow[prefix:].mean(0)
    cells = row[prefix:].unflatten(0, layer.layout.grid).cpu()
    n = len(attention.found)
    why = f"attention multiplied over {n} layers; it does not depend on the class"
    return Map(cells, why)
