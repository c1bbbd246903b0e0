"""Watch a training loop of the caller's own: `with watch(model, optimizer) as watched: ...`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from modelscope_cli.errors import UsageError
from modelscope_cli.output_files import OutputFolder, make_folder
from modelscope_cli.records.naming import counted, with_article
from modelscope_cli.records.run import Invocation
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.conclude import conclude
from modelscope_cli.watching.crash import crash_of
from modelscope_cli.watching.error_isolation import alone
from modelscope_cli.watching.log import VERSION, Log, log_file
from modelscope_cli.watching.model_registry import peel
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.read_record import record_of
from modelscope_cli.watching.read_series import merge_ranks
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.run_script import without_compile_warning
from modelscope_cli.watching.watcher import StopScript, Watcher


class WatchedLoop:
    """The steps in the block of `with`. Every hook is removed afterwards, also after an exception.

    Args:
        models: one or several; others that run are ignored.
        optimizers: one, several, or None for all that train the models.
    """

    def __init__(
        self,
        models: nn.Module | Sequence[nn.Module],
        optimizers: Optimizer | Sequence[Optimizer] | None,
        request: WatchRequest,
    ) -> None:
        self._models = _several(models, nn.Module, "torch.nn.Module")
        self._optimizers = _several(
            () if optimizers is None else optimizers, Optimizer, "torch.optim.Optimizer"
        )
        for model in self._models:
            if next(model.parameters(), None) is None:
                message = f"{with_article(type(model).__name__)} has no parameters to train"
                raise UsageError(message, "pass the whole model")
        self._request = request
        self._memory, self._invocation = RankLog(), Invocation()
        self._watcher = self._new_watcher(Log(None))  # refuses a pattern that matches nothing

    def __enter__(self) -> Self:
        if self._memory.end is not None:
            steps = counted(self.record().steps, "step")
            message = f"this loop has ended, and a second would replace what was recorded of its {steps}"
            raise UsageError(message, "call ms.watch again for another loop")
        with ExitStack() as stack:
            stack.enter_context(alone())
            path, folder = None, self._request.folder
            if folder is not None:
                OutputFolder(folder, self._request.force).check()
                make_folder(folder)
                path = log_file(folder)
            self._memory, self._invocation = RankLog(), Invocation()
            self._log = Log(path, self._memory.take)
            stack.callback(self._log.close)
            name = ", ".join(type(peel(model)).__name__ for model in self._models)
            self._log.write("begin", version=VERSION, script=name, source="object", argv=[], rank=0, world=1)
            self._watcher = self._new_watcher(self._log)
            stack.enter_context(without_compile_warning())
            stack.enter_context(self._watcher.recorder.installed())
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Report on the run; suppress only the exception by which `steps` and `abort_on` stop it."""
        stop = error if isinstance(error, StopScript) else None
        code = stop.exit_code if stop else int(error is not None)
        crash = None if error is None or stop else crash_of(error)
        self._log.write("end", **self._watcher.end(code, self._invocation.elapsed_ms, crash))
        self._open.close()
        if stop is not None:
            self._request.progress.note(stop.reason)
        conclude(self.record(), self._request.folder, self._request)
        return stop is not None

    def record(self) -> WatchRecord:
        """Return the record so far, before the loop, in it or after it."""
        if self._memory.end is not None:
            return record_of(merge_ranks([self._memory]))
        self._memory.end = self._watcher.end(None, self._invocation.elapsed_ms)  # while it is read
        try:
            return record_of(merge_ranks([self._memory]))
        finally:
            self._memory.end = None

    @property
    def verdict(self) -> str:
        """The verdict of the record; `not started` before the block of `with`, `running` until it has ended."""
        so_far = "running" if "_open" in vars(self) else "not started"
        return so_far if self._memory.end is None else self.record().verdict

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the record so far: `findings`, `plot`, `save`, `to_html`."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no '{name}'")
        return getattr(self.record(), name)

    def __getitem__(self, key: str | int | slice) -> Any:
        return self.record()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.record())

    def __contains__(self, one: object) -> bool:
        return one in self.record()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in dir(WatchRecord) if name[0] != "_")]

    def __repr__(self) -> str:
        steps = counted(self.record().steps, "step")
        return f"{type(self).__name__}({self.verdict}, {steps}; its record() has the results)"

    def __str__(self) -> str:
        return str(self.record())

    def _repr_html_(self) -> str:
        return self.record()._repr_html_()

    def _new_watcher(self, log: Log) -> Watcher:
        watcher = Watcher(log, self._request, self._memory, models=self._models, optimizers=self._optimizers)
        watcher.recorder.registry.check_patterns()
        return watcher


def _several(objects: Any, kind: type[Any], word: str) -> list[Any]:
    several = list(objects) if isinstance(objects, list | tuple) else [objects]
    for one in several if several or kind is Optimizer else [None]:
        if not isinstance(one, kind):
            what = f"the class {one.__name__}" if isinstance(one, type) else with_article(type(one).__name__)
            hint = f"pass a {word}, or a list of several"
            if isinstance(one, nn.Module | Optimizer):
                hint = "pass the model first, then its optimizer"
            raise UsageError(f"{what} is not a {word}", hint)
    return several
