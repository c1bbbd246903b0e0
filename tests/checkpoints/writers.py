"""Checkpoints as programs write them, with what is in them: every kind a function of a folder and a seed."""

import argparse
import io
import json
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16),
    *(torch.int8, torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64),
    *(
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
)


@dataclass(frozen=True)
class Written:
    """A file or folder, the tensors that reading it gives, and the key that takes these out of it."""

    path: Path
    state: dict[str, Tensor]
    key: str | None = None


def noise(chance: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Any bits at all, but where only some mean something."""
    count = max(1, int(np.prod(shape)))
    raw = torch.tensor(list(chance.randbytes(count * dtype.itemsize)), dtype=torch.uint8)
    values = raw % 2 if dtype == torch.bool else raw
    return values.view(dtype)[: int(np.prod(shape))].reshape(shape)


def tensor(chance: random.Random) -> Tensor:
    """A tensor of any dtype and layout in memory that a view can have."""
    dtype = chance.choice(DTYPES)
    shape = tuple(chance.choice((1, 2, 3, 5)) for _ in range(chance.randrange(5)))
    values = noise(chance, dtype, chance.choice((shape, shape, shape, (0, *shape))))
    changes: list[Callable[[Tensor], Tensor]] = [lambda x: x] * 3
    if values.dim() > 1:
        changes += [
            lambda x: x.transpose(0, -1),
            lambda x: x[:, 1:],
            lambda x: x[:, ::2],
            lambda x: x[:1].expand(3 * len(x[:1]), *x.shape[1:]),
        ]
    if values.dim() == 4:
        changes += [lambda x: x.to(memory_format=torch.channels_last)]
    if values.is_complex():
        changes += [lambda x: x.real, lambda x: x.imag]
    return chance.choice(changes)(values)


def state(chance: random.Random) -> dict[str, Tensor]:
    found = {
        f"layer{n}.{chance.choice(('weight', 'bias', 'running_mean'))}": tensor(chance) for n in range(12)
    }
    found["tied"] = found[chance.choice(list(found))]
    found["parameter"] = nn.Parameter(noise(chance, torch.float32, (3, 2)))
    return found


def plain(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.detach().resolve_conj().resolve_neg().clone().contiguous()
        for name, value in found.items()
    }


def torch_file(
    folder: Path, chance: random.Random, wrap: Callable[[Any], Any] = lambda x: x, **how: Any
) -> Written:
    found = state(chance)
    path = folder / "a.pt"
    torch.save(wrap(found), path, **how)
    return Written(path, found)


def _arguments(chance: random.Random) -> argparse.Namespace:
    return argparse.Namespace(lr=chance.random(), opt="sgd", nested=argparse.Namespace(a=[1, 2]))


class Items(list):
    """Stands for fastcore's `L`: a class of the program, around a list."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.head = nn.Linear(4, 2)
        self.again = self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)) + self.kept


def timm(folder: Path, chance: random.Random) -> Written:
    ema = state(chance)
    rest = {
        "epoch": 3,
        "arch": "resnet18",
        "optimizer": {"state": {0: {"m": torch.ones(2)}}},
        "args": _arguments(chance),
    }
    return torch_file(
        folder, chance, lambda found: {**rest, "state_dict": found, "state_dict_ema": ema, "version": 2}
    )


def fastai(folder: Path, chance: random.Random) -> Written:
    optimizer = {"state": [{"mom": torch.ones(2)}], "hypers": Items([{"lr": 1e-3}])}
    return torch_file(folder, chance, lambda found: {"model": found, "opt": optimizer})


def protocols(folder: Path, chance: random.Random) -> Written:
    return torch_file(
        folder,
        chance,
        pickle_protocol=chance.choice((2, 3, 4, 5)),
        _use_new_zipfile_serialization=chance.random() < 0.5,
    )


def whole_module(folder: Path, chance: random.Random) -> Written:
    module = Net()
    path = folder / "module.pt"
    torch.save(module, path, pickle_protocol=chance.choice((2, 4)))
    return Written(path, module.state_dict())


def optimizer(folder: Path, chance: random.Random) -> Written:
    module = Net()
    training = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    training.step()
    content = training.state_dict()
    path = folder / "a.pt"
    torch.save({"model": module.state_dict(), "optim": content, "args": _arguments(chance)}, path)
    expected = {
        f"state.{at}.{key}": value for at, own in content["state"].items() for key, value in own.items()
    }
    return Written(path, expected, "optim")


def exported(folder: Path, chance: random.Random) -> Written:
    module = Net().eval()
    path = folder / "m.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (torch.ones(2, 3),)), path)
    return Written(path, module.state_dict())


def safetensors(folder: Path, chance: random.Random) -> Written:
    found = plain(state(chance))
    path = folder / "model.safetensors"
    save_file(found, path, metadata={"format": "pt", "{}": '"}'})
    return Written(folder if chance.random() < 0.5 else path, found)


def shards(folder: Path, chance: random.Random) -> Written:
    first, second = plain(state(chance)), plain(state(chance))
    second = {f"second.{name}": value for name, value in second.items()}
    save_file(first, folder / "model-1.safetensors")
    torch.save(second, folder / "pytorch_model-2.bin")
    where = dict.fromkeys(first, "model-1.safetensors") | dict.fromkeys(second, "pytorch_model-2.bin")
    index = {"metadata": {"total_size": 1, "more": {"a": []}}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return Written(folder, {**first, **second})


def with_attributes(folder: Path, chance: random.Random) -> Written:
    odd = nn.Parameter(torch.ones(2, 3) * chance.random())
    odd.color = "red"  # type: ignore[attr-defined]
    even = torch.full((2,), chance.random())
    even.more = torch.ones(3)  # type: ignore[attr-defined]
    path = folder / "a.pt"
    torch.save({"odd": odd, "even": even}, path)
    return Written(path, {"odd": odd, "even": even})


def in_memory(folder: Path, chance: random.Random) -> Written:
    """Tensors inside lists, without a state dict."""
    values = [tensor(chance) for _ in range(3)]
    path = folder / "list.pt"
    buffer = io.BytesIO()
    torch.save({"history": values, "tuple": (values[0], {"a": values[1]})}, buffer)
    path.write_bytes(buffer.getvalue())
    names = {f"history.{at}": value for at, value in enumerate(values)}
    return Written(path, {**names, "tuple.0": values[0], "tuple.1.a": values[1]})


# Half of the kinds were looked at while the readers were written, and half only afterwards.
KINDS: tuple[Callable[[Path, random.Random], Written], ...] = (
    *(torch_file, timm, fastai, protocols, safetensors, with_attributes),
    *(whole_module, optimizer, exported),
    *(shards, in_memory),
)
