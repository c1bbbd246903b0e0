"""Judge a run while it goes on, from its log in memory, and from what the other ranks have written."""

import json
from pathlib import Path

from modelscope_cli.rules.training import judge_training
from modelscope_cli.watching.log import log_file
from modelscope_cli.watching.read_series import RankLog, merge_ranks

_AT_LEAST_EVERY = (
    256  # parts of a run: what is found is found within so small a part of the time it took to come
)


class Judge:
    """Says what the rules find so far.

    A judgement looks at everything since the beginning, so that in long runs not every record gets one.

    Args:
        folder: where the other ranks write their logs, which the first rank reads; None in a single process.
    """

    def __init__(self, log: RankLog, folder: Path | None = None, n_ranks: int = 1) -> None:
        self._log = log
        self._others = {log_file(folder, rank): RankLog() for rank in range(1, n_ranks)} if folder else {}
        self._offsets = dict.fromkeys(self._others, 0)
        self._n_asked = 0
        self._due = 1

    def ask(self) -> str | None:
        """Return the first finding in words; to be asked after every recorded step."""
        self._n_asked += 1
        if self._n_asked < self._due:
            return None
        self._due = self._n_asked + max(self._n_asked // _AT_LEAST_EVERY, 1)
        is_first = not self._log.begin.get("rank")
        others = [log for path, log in self._others.items() if is_first and self._has_begun(path, log)]
        series = merge_ranks([self._log, *others])
        findings = judge_training(series, series.facts).findings
        return f"{findings[0].code} {findings[0].message}" if findings else None

    def _has_begun(self, path: Path, log: RankLog) -> bool:
        """Read on in the log of another rank, as far as it has whole lines."""
        if path.is_file():
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                whole, end, _ = file.read().rpartition(b"\n")
            self._offsets[path] += len(whole) + len(end)
            for line in whole.splitlines():
                ((kind, entry),) = json.loads(line).items()
                log.take(kind, entry)
        return bool(log.begin)
