"""Former spellings of options, and a file given to --weights: they work, and stand in no help."""

import re
import shlex
from collections.abc import Mapping, Sequence

from modelscope_cli.errors import UsageError

_LEARNING = {"--norm": "--norm-layer"}
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "predict": {"--activation": "--scores"},
    "ablate": {"--how": "--method", "--channels": "--by-channel"},
    "prune": {"--channels": "--by-channel", "--save": "--save-weights"},
    "train": _LEARNING,
    "lrfind": _LEARNING,
}


def renewed(argv: Sequence[str]) -> list[str]:
    """Return a command line with the options by the names they have now; what follows `--` is not an option.

    Raises:
        UsageError: a number behind what was a flag (exit 2).
    """
    words = list(argv)
    names = OLD_NAMES.get(words[0], {}) if words else {}
    end = words.index("--") if "--" in words else len(words)
    for position in range(1, end):
        option, equals, value = words[position].partition("=")
        if words[0] == "ablate" and option == "--channels":
            _refuse_numbers(words, position, value)
        words[position] = names.get(option, option) + equals + value
        typed = value or next(iter(words[position + 1 :]), "")
        if option in ("--weights", "-w") and words[0] != "watch" and _is_file(typed):
            words[position] = "--checkpoint" + equals + value
    return words


def _is_file(typed: str) -> bool:
    """Tell a checkpoint, which other tools take there, from the name of weights."""
    from modelscope_cli.models.weights_file import is_checkpoint_file

    return is_checkpoint_file(typed)


def _refuse_numbers(words: Sequence[str], position: int, value: str) -> None:
    typed = value or next(iter(words[position + 1 :]), "")
    if re.fullmatch(r"[\d.,-]+", typed):
        rest = [*words[:position], "--by-channel", *words[position + (1 if value else 2) :]]
        message = f"'--channels {typed}': ablate takes out all channels of a layer, one after the other"
        raise UsageError(message, shlex.join(["modelscope", *rest]))
