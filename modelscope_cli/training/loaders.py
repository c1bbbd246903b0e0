"""Batches of the user: a loader, a pair of loaders, or `file.py:loaders`."""

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.models.importspec import import_object, user_code_failed
from modelscope_cli.records.naming import with_article
from modelscope_cli.records.run import InputInfo, Notice, Shape
from modelscope_cli.records.train import DataInfo
from modelscope_cli.training.runner import LabelledBatch


class UserBatches:
    """Batches `(inputs, targets)` of a user's loader, called `name` in messages."""

    def __init__(self, loader: Iterable[Any], name: str) -> None:
        self._loader, self._name = loader, name

    def __iter__(self) -> Iterator[LabelledBatch]:
        batches = guarded(lambda: iter(self._loader), self._name)
        end = object()
        for number in itertools.count():
            batch = guarded(lambda: next(batches, end), self._name)
            if batch is end:
                if number == 0:
                    raise UsageError(
                        f"'{self._name}' yields no batches", "pass an iterable that starts again each time"
                    )
                return
            is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
            if not (is_pair and all(isinstance(part, Tensor) for part in batch)):
                kind = with_article(type(batch).__name__)
                message = f"'{self._name}' yields {kind}, not two tensors (inputs, targets)"
                raise UsageError(message, "yield inputs, targets")
            yield batch[0], batch[1]


class LoaderData:
    """Training data from loaders of the user.

    Args:
        loaders: an iterable, or a tuple or dict of two: one to train on and one to validate on.
        name: its name in messages and in the record.
    """

    def __init__(self, loaders: Any, name: str) -> None:
        if isinstance(loaders, dict):
            loaders = tuple(loaders.values())
        self._loaders: list[Any] = list(loaders[:2] or (None,)) if isinstance(loaders, tuple) else [loaders]
        for loader in self._loaders:
            if not isinstance(loader, Iterable):
                message = f"'{name}' is {with_article(type(loader).__name__)}, which does not yield batches"
                raise UsageError(message, "return a DataLoader, or (train, valid)")
        self.source = name
        self.classes = _classes(self._loaders[0])

    @property
    def n_classes(self) -> None:
        """None: the labels are not known in advance, so the model keeps its classes."""

    def batches(self, batch: int, seed: int) -> UserBatches:
        """Return the batches of the loader, which decides their size and order."""
        return UserBatches(self._loaders[0], self.source)

    def held_out_batches(self) -> UserBatches | tuple[()]:
        """Return the batches of the second loader, if there is one."""
        return UserBatches(self._loaders[1], self.source) if len(self._loaders) > 1 else ()

    def info(self, shape: Shape) -> DataInfo:
        counts = [_count(loader) for loader in self._loaders]
        return DataInfo(self.source, self.classes, counts[0], sum(counts[1:]), shape[-1])

    def input_info(self, shape: Shape) -> InputInfo:
        return InputInfo("tensor", (shape,))

    def warnings(self) -> tuple[Notice, ...]:
        """Return nothing: what a loader skips is unknown."""
        return ()

    @contextmanager
    def as_found(self) -> Iterator[None]:
        """Restore the generators of the loaders on exit, so that the next training sees the same order."""
        states = [
            (generator, generator.get_state())
            for loader in self._loaders
            for generator in _generators(loader)
        ]
        try:
            yield
        finally:
            for generator, state in states:
                generator.set_state(state)


def import_loaders(spec: str) -> LoaderData:
    """Import `file.py:attr`: loaders, or a function that returns them."""
    if ":" not in spec:
        message = f"'--loaders {spec}' is a file without the name of a loader in it"
        raise UsageError(
            message, f"--loaders {shlex.quote(spec)}:NAME   of a DataLoader, or a function that returns one"
        )
    loaders = import_object(spec, "--loaders")
    return LoaderData(guarded(loaders, spec) if callable(loaders) else loaders, spec)


def guarded(call: Callable[[], Any], name: str) -> Any:
    """Call user code and report its exceptions as the user's."""
    try:
        return call()
    except Exception as error:
        raise user_code_failed(f"loaders '{name}'", error) from error


def _generators(loader: Any) -> list[torch.Generator]:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    generators = {
        id(generator): generator
        for owner in (loader, sampler, inner)
        if (generator := getattr(owner, "generator", None))
    }
    return [generator for generator in generators.values() if isinstance(generator, torch.Generator)]


def _classes(loader: Any) -> tuple[str, ...]:
    """Return the class names, if the data set has `classes` as those of torchvision do."""
    names = getattr(getattr(loader, "dataset", None), "classes", ())
    return tuple(map(str, names)) if isinstance(names, tuple | list) else ()


def _count(loader: Any) -> int:
    """Return the number of images; 0 if it is not known without iterating."""
    if isinstance(loader, list):
        return sum(len(inputs) for inputs, _ in UserBatches(loader, "data"))
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return 0
