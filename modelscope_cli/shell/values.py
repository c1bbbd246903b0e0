"""Several values behind one option, as some tools have them: here they stand between commas, or it is repeated."""

import os
from collections.abc import Sequence

from modelscope_cli.shell.again import options_of, takes_value

_WITH_COMMAS = frozenset(["A,B,...", "CODES", "H[,W]", "LIST", "NAMES", "R,G,B", "SHAPE"])
_REPEATED = "PATTERN"


def values_together(argv: Sequence[str]) -> list[str] | None:
    """Return a line with all values of an option where they belong; None where there is nothing to put there."""
    options = options_of(argv[0])
    words, rest = [argv[0]], list(argv[1:])
    while rest:
        word = rest.pop(0)
        words.append(word)
        option = options.get(word)
        if option is None or not takes_value(option) or not rest:
            continue
        values = [rest.pop(0)]
        while rest and option.metavar in {*_WITH_COMMAS, _REPEATED} and _is_value(rest[0]):
            values.append(rest.pop(0))
        if option.metavar == _REPEATED:
            words += [part for value in values for part in (word, value)][1:]
        else:
            words.append(",".join(value.strip("()[],") for value in values) if len(values) > 1 else values[0])
    return words if words != list(argv) else None


def _is_value(word: str) -> bool:
    from modelscope_cli.shell.named_model import names_model

    return not (word.startswith("-") or os.path.exists(word) or names_model(word))
