"""Parameters and multiply-adds of every published weight entry against what torchvision says of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from figure import Figure, n_of
from torch import nn
from torchvision.models import get_model, get_model_builder, get_model_weights

import modelscope_cli as ms
from modelscope_cli.models import initialise, zoo
from modelscope_cli.models.names import model_names
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.models.zoo import family_of

N_ENTRIES = 139
# Counted by torchvision without the two auxiliary heads that its weights have, and that we count.
WITHOUT_AUXILIARY_HEADS = ["googlenet"]


def build_as_published(name: str, weights: Any, *_: object) -> nn.Module:
    """Build a model as its weights require, without their file."""
    return get_model(name, weights=None, **zoo._wanted(get_model_builder(name), weights))


def measure(pairs: int | None) -> Iterator[Figure]:
    """Count the entries outside detection and quantization whose published figures are ours, exactly."""
    n, other_macs, other_params = 0, [], []
    for name in model_names():
        if family_of(name) in ("detection", "quantization"):
            continue
        for weights in get_model_weights(name):
            n += 1
            with (
                patch.object(initialise, "find_weights", lambda *_, **__: (Path(), "cache")),
                patch.object(initialise, "_read_weights", lambda _: ({}, "")),
                patch.object(initialise, "build_pretrained", build_as_published),
            ):
                totals = ms.summary(ModelRequest(name, weights=weights.name)).totals
            if f"{totals.macs / 1e9:.3f}" != f"{weights.meta['_ops']:.3f}":
                other_macs.append(f"{name} {weights.name}")
            if totals.params != weights.meta["num_params"]:
                other_params.append(name)
    yield Figure(
        "multiply-adds as torchvision publishes them, to three decimals of 1e9",
        n_of(n, other_macs),
        f"{N_ENTRIES} of {N_ENTRIES}",
        n == N_ENTRIES and not other_macs,
    )
    yield Figure(
        "parameters as torchvision publishes them",
        n_of(n, other_params),
        f"{N_ENTRIES - 1} of {N_ENTRIES} (googlenet: published without its auxiliary heads)",
        n == N_ENTRIES and other_params == WITHOUT_AUXILIARY_HEADS,
    )
