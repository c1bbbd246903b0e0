"""What a rule is."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from modelscope_cli.records.check import RuleInfo, RuleText
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.rules.reasons import WHY, how_to_silence


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place where a rule is broken.

    Attributes:
        layer: None for the model as a whole.
        message: what was seen, in words.
        severity: where it is not as severe as the rule.
        is_rest: it stands for several places, `value` of them, each beyond the threshold.
    """

    layer: str | None
    value: float | None
    message: str
    severity: str | None = None
    is_rest: bool = False


def always(evidence: Evidence, threshold: Any) -> str | None:
    """The excuse of a rule that has none."""
    return None


@dataclass(frozen=True, slots=True)
class ListedRule(RuleText):
    """What `modelscope rules` tells of a rule."""

    def info(self, threshold: float | str | None) -> RuleInfo:
        """Return the rule as it is listed, with the threshold in force."""
        told = {field.name: getattr(self, field.name) for field in fields(RuleText)}
        reasons = {"why": WHY.get(self.code, ""), "silence": how_to_silence(self.code, self.name)}
        return RuleInfo(**{**told, **reasons, "threshold": threshold})


@dataclass(frozen=True, slots=True)
class Rule(ListedRule):
    """A named check of a model.

    Attributes:
        needs: the fields of `Evidence` it looks at.
        wants: the same, where it can be judged without.
        yields_to: codes of rules before it whose finding in a layer explains one of this rule there.
        judge: gives every place where it is broken.
        kind: how a threshold is written: `number`, `count` (25M), `bytes` (500MB), `shape` (1,1000).
        most: the largest value there can be of what is measured: 1 of a share.
        excuse: says why it cannot be judged here, None where it can.
    """

    needs: frozenset[str]
    judge: Callable[[Evidence, Any], Iterable[Sighting]]
    kind: str = "number"
    most: float = math.inf
    wants: frozenset[str] = frozenset()
    yields_to: tuple[str, ...] = ()
    excuse: Callable[[Evidence, Any], str | None] = always
