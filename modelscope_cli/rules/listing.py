"""The rules as they are listed: of `check`, and of `watch` and `train`."""

from modelscope_cli.records.check import RuleList
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.rules import training
from modelscope_cli.rules.registry import EVERY_RULE, match_rules

EVERY = tuple(sorted((*EVERY_RULE, *training.RULES), key=lambda rule: rule.code))
"""The rules of models, of data sets and of trainings, by code."""


def list_rules(*which: str) -> RuleList:
    """Return the rules with their thresholds, where those come from, and what to do.

    Args:
        which: a code, a name, or the beginning of a code: MS705, dead-channels, MS7. In Python, none is every rule.

    Raises:
        UsageError: one of them means nothing; names the nearest (exit 2 on the command line).
    """
    chosen = match_rules(which, EVERY) if which else EVERY
    return RuleList(versions(), invocation().argv, tuple(rule.info(rule.threshold) for rule in chosen))
