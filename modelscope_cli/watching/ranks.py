"""Coordinate the processes of a run started by torchrun, through files only."""

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.ranks import Ranks
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.log import log_file

WAIT_FOR_RANKS_S = 20.0  # torchrun kills processes half a minute after SIGTERM
_POLL_S, _PATIENCE_S = 0.05, 30.0


def check_ranks(ranks: Ranks, has_folder: bool) -> None:
    """Refuse several machines without a shared folder."""
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1 and ranks.world > 1 and not has_folder:
        raise UsageError("several machines need a shared folder", "--out FOLDER   that all machines share")


@contextmanager
def agreed_folder(ranks: Ranks, choose: Callable[[], Path]) -> Iterator[Path]:
    """Yield the folder chosen by the first process, in every process on this machine."""
    check_ranks(ranks, has_folder=False)
    # All processes have the same parent, and its port is unique while it runs.
    sign = Path("runs") / f".watch-{os.getppid()}-{os.environ.get('MASTER_PORT', '0')}"
    if not ranks.is_first:
        if not any(sign.exists() for _ in _until(_PATIENCE_S)):
            raise CannotRunError("the first process has not announced its folder", "--out FOLDER")
        yield Path(sign.read_text(encoding="utf-8"))
        return
    folder = choose()
    try:
        if ranks.world > 1:
            sign.parent.mkdir(exist_ok=True)
            part = sign.with_suffix(".part")
            part.write_text(str(folder.absolute()), encoding="utf-8")
            part.replace(sign)
        yield folder
    finally:
        if ranks.world > 1:
            sign.unlink(missing_ok=True)


def wait_for_first(folder: Path, ranks: Ranks, is_forced: bool) -> None:
    """Wait until the first process has accepted a folder, before another one writes to it."""
    if not is_forced and log_file(folder, ranks.rank).exists():
        raise UsageError(f"folder '{folder}' is not empty", f"--out {shlex.quote(str(folder))} --force")
    if not any(log_file(folder).exists() for _ in _until(_PATIENCE_S)):
        raise CannotRunError(f"the first process has not yet written to '{folder}'", "--out FOLDER")


def wait_for_others(folder: Path, ranks: Ranks, seconds: float) -> list[int]:
    """Wait until the logs of all other processes have ended; return the ranks that have not in time."""
    missing = set(range(ranks.world)) - {ranks.rank}
    for _ in _until(seconds):
        missing = {rank for rank in missing if not _has_ended(log_file(folder, rank))}
        if not missing:
            break
    return sorted(missing)


def read_together(own: WatchRecord, folder: Path, ranks: Ranks) -> WatchRecord:
    """Return the record of all ranks; that of this rank if the logs cannot be read."""
    from modelscope_cli.watching.read_record import read_record

    wait_for_others(folder, ranks, WAIT_FOR_RANKS_S)
    try:
        return read_record(folder)
    except Exception:  # reported by the first rank
        return own


def _until(seconds: float) -> Iterator[None]:
    """Yield at once, then repeatedly until the time is up."""
    end = time.monotonic() + seconds
    yield
    while time.monotonic() < end:
        time.sleep(_POLL_S)
        yield


def _has_ended(path: Path) -> bool:
    try:
        with path.open("rb") as log:
            log.seek(max(path.stat().st_size - 4096, 0))
            return b'\n{"end":' in log.read()
    except OSError:
        return False
