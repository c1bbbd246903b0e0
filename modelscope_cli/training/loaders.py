"""A user's own batches: `file.py:loaders`."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.models.importspec import import_object
from modelscope_cli.models.usercode import user_code_failed
from modelscope_cli.training.runner import Batch


class UserBatches:
    """The batches `(inputs, targets)` of a user's function or object; of several loaders, the first.

    Args:
        spec: `file.py:attr`: something to iterate over, or a function that returns it, or a tuple or dict of such.

    Raises:
        UsageError: no such file or attribute, or nothing to iterate over (exit 2).
        CannotRunError: the user's code raised (exit 4).
    """

    def __init__(self, spec: str) -> None:
        self._spec = spec
        found = import_object(spec, "--loaders")
        if callable(found):
            found = self._guarded(found)
        if isinstance(found, dict):
            found = next(iter(found.values()), None)
        elif isinstance(found, tuple):
            found = found[0] if found else None
        if not isinstance(found, Iterable):
            message = f"'{spec}' gives a {type(found).__name__}, nothing to take batches from"
            raise UsageError(message, "return a DataLoader, or (train, valid)")
        self._loader: Iterable[Any] = found

    def first(self) -> Batch:
        """Return one batch."""
        return next(iter(self))

    def __iter__(self) -> Iterator[Batch]:
        batches = self._guarded(lambda: iter(self._loader))
        end = object()
        for number in itertools.count():
            batch = self._guarded(lambda: next(batches, end))
            if batch is end:
                if number == 0:
                    raise UsageError(
                        f"'{self._spec}' gives no batches", "an iterable that starts anew each time"
                    )
                return
            if not _is_batch(batch):
                message = f"'{self._spec}' gives a {type(batch).__name__}, not two tensors (inputs, targets)"
                raise UsageError(message, "yield inputs, targets")
            yield batch[0], batch[1]

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise user_code_failed(f"loaders '{self._spec}'", error) from error


def _is_batch(batch: Any) -> bool:
    is_pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    return is_pair and all(isinstance(part, Tensor) for part in batch)
