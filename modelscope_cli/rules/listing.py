"""The rules as they are listed: of `check`, and of `watch` and `train`."""

from modelscope_cli.records.check import RuleList
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.rules import training
from modelscope_cli.rules.registry import RULES


def list_rules() -> RuleList:
    """Return every rule with its threshold and where that comes from."""
    infos = tuple(rule.info(rule.threshold) for rule in (*RULES, *training.RULES))
    return RuleList(versions(), invocation().argv, infos)
