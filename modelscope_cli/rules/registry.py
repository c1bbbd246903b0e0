"""Every rule there is, and how a person names some of them."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.rules import activations, behaviour, budgets, files, gradients, structure, weights
from modelscope_cli.rules.rule import ListedRule, Rule

AnyRule = TypeVar("AnyRule", bound=ListedRule)

RULES: tuple[Rule, ...] = (
    *files.RULES,
    *weights.RULES,
    *activations.RULES,
    *gradients.RULES,
    *structure.RULES,
    *budgets.RULES,
    *behaviour.RULES,
)


def find_rule(typed: str, where: str) -> Rule:
    """Return the rule of `check` with this code or name.

    Raises:
        UsageError: there is none; names the nearest (exit 2).
    """
    return _find(typed, RULES, f"in {where}")


def _find(typed: str, rules: Sequence[AnyRule], where: str) -> AnyRule:
    for rule in rules:
        if typed.strip().lower() in (rule.code.lower(), rule.name):
            return rule
    raise _unknown(typed, rules, where)


def choose_rules(select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules that codes, names or beginnings of codes (`MS2`) mean; no `select` means all.

    Raises:
        UsageError: one of them means nothing, or none is left (exit 2).
    """
    select, ignore = tuple(select), tuple(ignore)
    taken, left = match_rules(select, RULES, "in --select"), match_rules(ignore, RULES, "in --ignore")
    chosen = tuple(rule for rule in (taken or RULES) if rule not in left)
    if not chosen:
        raise UsageError(f"'--ignore {','.join(ignore)}' leaves no rule to judge", "modelscope rules")
    return chosen


def match_rules(typed: Iterable[str], rules: Sequence[AnyRule], where: str = "") -> tuple[AnyRule, ...]:
    """Return those of `rules` that codes, names or beginnings of codes mean, in the order of `rules`.

    Args:
        where: stands behind what was typed, in the error: `in --select`.

    Raises:
        UsageError: one of them means nothing; names the nearest (exit 2).
    """
    codes = {code for one in typed for code in _codes(one, rules, where)}
    return tuple(rule for rule in rules if rule.code in codes)


def _codes(typed: str, rules: Sequence[AnyRule], where: str) -> list[str]:
    prefix = typed.strip().upper()
    found = [rule.code for rule in rules if prefix and rule.code.startswith(prefix)]
    return found or [_find(typed, rules, where).code]


def _unknown(typed: str, rules: Sequence[ListedRule], where: str) -> UsageError:
    near = nearest(typed, [name for rule in rules for name in (rule.code, rule.name)])
    return UsageError(
        f"unknown rule '{typed}' {where}".rstrip() + (f": {near}" if near else ""), "modelscope rules"
    )
