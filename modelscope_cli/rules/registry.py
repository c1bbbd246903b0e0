"""List every rule, and choose rules by code or name."""

from collections.abc import Iterable, Sequence

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.records.findings import RuleList
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.rules import activations, behaviour, dataset, gradients, structure, training, weights
from modelscope_cli.rules.rule import AnyRule, Rule, rules_in

RULES = rules_in(Rule, weights, activations, gradients, structure, behaviour)
DATASET_RULES = rules_in(Rule, dataset)
EVERY_RULE = (*RULES, *DATASET_RULES)


def find_rule(typed: str, where: str) -> Rule:
    """Return the rule of `check` with this code or name, for models or data sets."""
    return _find(typed, EVERY_RULE, f"in {where}")


def _find(word: str, rules: Sequence[AnyRule], where: str) -> AnyRule:
    for rule in rules:
        if word.strip().lower() in (rule.code.lower(), rule.name):
            return rule
    near = nearest(word, [rule.name for rule in rules])
    raise UsageError(f"unknown rule '{word}' {where}".rstrip(), near or "modelscope check --list")


def choose_rules(
    select: Iterable[str], ignore: Iterable[str], every: Sequence[Rule] = RULES
) -> tuple[Rule, ...]:
    """Return the rules selected by codes, names or code prefixes (`MS2`); no `select` means all.

    Args:
        every: all rules for models, or for data sets.
    """
    select, ignore = tuple(select), tuple(ignore)
    selected = match_rules(select, EVERY_RULE, "in --select") or every
    ignored = match_rules(ignore, EVERY_RULE, "in --ignore")
    chosen = tuple(rule for rule in selected if rule in every and rule not in ignored)
    if not chosen and not any(rule in every for rule in selected):
        which, other = ("a model", "a data set") if every is RULES else ("a data set", "a model")
        message = f"'--select {','.join(select)}' selects rules for {other}, but {which} is checked"
        raise UsageError(message, f"--select {every[0].code[:3]}")
    if not chosen:
        raise UsageError(f"'--ignore {','.join(ignore)}' leaves no rule to judge", "leave out --ignore")
    return chosen


def match_rules(typed: Iterable[str], rules: Sequence[AnyRule], where: str = "") -> tuple[AnyRule, ...]:
    """Return the `rules` selected by codes, names or code prefixes, in their order.

    Args:
        where: follows the typed word in the error: `in --select`.
    """
    codes = set[str]()
    for word in typed:
        prefix = word.strip().upper()
        started = [rule.code for rule in rules if prefix and rule.code.startswith(prefix)]
        codes.update(started or [_find(word, rules, where).code])
    return tuple(rule for rule in rules if rule.code in codes)


EVERY = tuple(sorted((*EVERY_RULE, *training.RULES), key=lambda rule: rule.code))
"""The rules of models, of data sets and of trainings, by code."""


def list_rules(*which: str) -> RuleList:
    """Return the rules with their thresholds, the sources of these, and what to do.

    Args:
        which: a code, a name, or the beginning of a code: MS705, dead-channels, MS7. In Python, without any, all
            rules.

    Raises:
        UsageError: one of them means nothing; names the nearest (exit 2 on the command line).
    """
    chosen = match_rules(which, EVERY) if which else EVERY
    return RuleList(versions(), invocation().argv, tuple(rule.info(rule.threshold) for rule in chosen))
