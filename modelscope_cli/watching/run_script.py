"""Run a script under a recorder, alone or as one of several ranks, and report on it."""

import atexit
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path

from modelscope_cli.errors import UsageError, afterwards
from modelscope_cli.lean import collect_garbage_rarely, collect_new_garbage
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.ranks import Ranks, find_ranks
from modelscope_cli.records.progress import SILENT, LiveProgress
from modelscope_cli.records.run import Invocation
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.conclude import conclude
from modelscope_cli.watching.error_isolation import alone
from modelscope_cli.watching.log import VERSION, Log, log_file
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.ranks import WAIT_FOR_RANKS_S, wait_for_first, wait_for_others
from modelscope_cli.watching.read_record import read_record, record_of
from modelscope_cli.watching.read_series import merge_ranks, read_rank
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.runner import Script, StartedScript, gentle_sigterm
from modelscope_cli.watching.watcher import Redraw, StopScript, Watcher


def run_script(script: Script, request: WatchRequest, invoked: Invocation) -> WatchRecord:
    """Run a script and return the record; the first rank returns that of all ranks, the others their own.

    Without a folder the log is kept in memory, and other ranks are not read. Trials see the files as they were
    before the run.
    """
    # Without a folder each process is on its own.
    ranks = find_ranks() if request.folder is not None else Ranks()
    if not request.try_fixes:
        record, folder, _ = _watched(script, request, invoked, ranks)
        return conclude(record, folder, request) if ranks.is_first else record
    from modelscope_cli.watching.trials.fixes import FixFinder, add_trials

    with FixFinder(_started(script), request) as finder:
        record, folder, memory = _watched(script, request, invoked, ranks)
        if not ranks.is_first:
            return record
        if not record.came_to_nothing:
            trials, code = finder.find(record), record.exit_code
            if folder is not None:
                add_trials(folder, trials)
                record = read_record(folder)
            else:
                memory.take("trials", asdict(trials))
                record = record_of(merge_ranks([memory]))
            record = replace(record, exit_code=code)
    return conclude(record, folder, request)


def _started(script: Script) -> StartedScript:
    return StartedScript(
        script.target, (*script.arguments,), script.is_module, script.file, os.getcwd(), time.time()
    )


def _watched(
    script: Script, request: WatchRequest, invoked: Invocation, ranks: Ranks
) -> tuple[WatchRecord, Path | None, RankLog]:
    """Return the record of a run, the folder that is kept, and the log in memory where there is none."""
    folder, progress = request.folder, request.progress
    memory = RankLog()
    process = os.getpid()
    is_new = folder is not None and not (folder.exists() and any(folder.iterdir()))
    refusal: UsageError | None = None
    with alone(), gentle_sigterm() as hold_off:
        path = None if folder is None else _open_folder(folder, ranks, request.force)
        log = Log(path, memory.take if path is None or request.abort_on == "findings" else None)
        argv = [*invoked.argv]
        log.write(
            "begin",
            version=VERSION,
            script=script.name,
            argv=argv,
            rank=ranks.rank,
            world=ranks.world,
            started=asdict(_started(script)),
        )
        live_progress = progress if isinstance(progress, LiveProgress) else None
        live = live_progress.live() if ranks.is_first and live_progress is not None else nullcontext()
        with live as show, without_compile_warning():
            watcher = Watcher(
                log,
                request,
                memory,
                script=script.typed,
                n_ranks=find_ranks().world,
                show=show,
                redraw=Redraw.every(5, live_progress.redraw if live_progress and ranks.is_first else None),
            )
            collect_new_garbage()
            try:
                with _returning(), watcher.recorder.installed():
                    code = script.run((live_progress or SILENT).relay)
            except StopScript as stop:
                code, refusal = stop.exit_code, stop.refusal
                if stop.reason and ranks.is_first:
                    progress.note(stop.reason)
        if os.getpid() != process:  # a fork of the script that has returned here
            raise SystemExit(code)
        hold_off()
        collect_garbage_rarely()
        last = watcher.end(code, invoked.elapsed_ms, script.crash)
        log.write("end", **last)
        log.close()
        if log.failure is not None:
            progress.warn(f"the log is incomplete: {log.failure}")
        if ranks.is_first:
            for rank in wait_for_others(folder, ranks, WAIT_FOR_RANKS_S) if folder is not None else ():
                progress.warn(f"rank {rank} has not finished; the report has what it wrote so far")
            if refusal is not None:
                raise refusal

        # From here on nothing changes the script's exit code.
        nothing = RankLog(begin={"script": script.name, "argv": tuple(argv)}, end=last)
        record = record_of(merge_ranks([nothing]))
        with afterwards(progress.warn, "the record could not be read"):
            if path is None or folder is None:
                record = record_of(merge_ranks([memory]))
            else:
                record = read_record(folder) if ranks.is_first else record_of(merge_ranks([read_rank(path)]))
        record = replace(record, exit_code=code)  # even if the log was cut off
        if path is None or not ranks.is_first:
            return record, None, memory
        is_kept = not (record.came_to_nothing and is_new and ranks.world == 1)
        if not is_kept:
            path.unlink(missing_ok=True)
        return record, folder if is_kept else None, memory


def _enter(folder: str) -> None:
    with suppress(OSError):  # it is gone
        os.chdir(folder)


@contextmanager
def _returning() -> Iterator[None]:
    """Go back to where the run began and its files are; what the script does at exit runs in its own folder."""
    home = os.getcwd()
    try:
        yield
    finally:
        with suppress(OSError):  # its folder is gone
            theirs = os.getcwd()
            if theirs != home:
                atexit.register(_enter, theirs)
        _enter(home)


def _open_folder(folder: Path, ranks: Ranks, force: bool) -> Path:
    if ranks.is_first:
        output = OutputFolder(folder, force)
        output.check()
        output.begun()
    else:
        wait_for_first(folder, ranks, force)
    return log_file(folder.absolute(), ranks.rank)


@contextmanager
def without_compile_warning() -> Iterator[None]:
    """Suppress torch's warning that global hooks count a compiled model twice; the recorder counts it once."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"Using `torch.compile\(module\)` when there are global hooks"
        )
        yield
