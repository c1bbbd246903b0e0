"""Every rule there is, and how a person names some of them."""

from collections.abc import Iterable

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.rules import activations, behaviour, budgets, files, gradients, structure, weights
from modelscope_cli.rules.rule import Rule

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
    """Return the rule with this code or name.

    Raises:
        UsageError: there is none; names the nearest (exit 2).
    """
    for rule in RULES:
        if typed.strip().lower() in (rule.code.lower(), rule.name):
            return rule
    raise _unknown(typed, where)


def choose_rules(select: Iterable[str], ignore: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules that codes, names or beginnings of codes (`MS2`) mean; no `select` means all.

    Raises:
        UsageError: one of them means nothing, or none is left (exit 2).
    """
    select, ignore = tuple(select), tuple(ignore)
    taken = {code for typed in select for code in _match(typed, "--select")} or {rule.code for rule in RULES}
    left = {code for typed in ignore for code in _match(typed, "--ignore")}
    chosen = tuple(rule for rule in RULES if rule.code in taken - left)
    if not chosen:
        raise UsageError(f"'--ignore {','.join(ignore)}' leaves no rule to judge", "modelscope rules")
    return chosen


def _match(typed: str, where: str) -> list[str]:
    prefix = typed.strip().upper()
    found = [rule.code for rule in RULES if prefix and rule.code.startswith(prefix)]
    return found or [find_rule(typed, where).code]


def _unknown(typed: str, where: str) -> UsageError:
    near = nearest(typed, [name for rule in RULES for name in (rule.code, rule.name)])
    return UsageError(
        f"unknown rule '{typed}' in {where}" + (f": {near}" if near else ""), "modelscope rules"
    )
