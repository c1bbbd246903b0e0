"""Judge a run while it goes on, from the log as it is kept in memory."""

from modelscope_cli.rules.training import judge_training
from modelscope_cli.watching.read_series import RankLog, merge_ranks

_AT_LEAST_EVERY = (
    256  # parts of a run: what is found is found within so small a part of the time it took to come
)


class Judge:
    """Says what the rules find so far.

    A judgement looks at everything since the beginning, so that in long runs not every record gets one.
    """

    def __init__(self, log: RankLog) -> None:
        self._log = log
        self._n_asked = 0
        self._due = 1

    def ask(self) -> str | None:
        """Return the first finding in words; to be asked after every recorded step."""
        self._n_asked += 1
        if self._n_asked < self._due:
            return None
        self._due = self._n_asked + max(self._n_asked // _AT_LEAST_EVERY, 1)
        series = merge_ranks([self._log])
        findings = judge_training(series, series.facts).findings
        return f"{findings[0].code} {findings[0].message}" if findings else None
