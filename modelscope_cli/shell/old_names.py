"""Former spellings of options: they still work, and stand in no help."""

from collections.abc import Mapping, Sequence

_LEARNING = {"--norm": "--norm-layer"}
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "predict": {"--activation": "--scores"},
    "ablate": {"--how": "--method", "--channels": "--by-channel"},
    "prune": {"--channels": "--by-channel", "--save": "--save-weights"},
    "train": _LEARNING,
    "lrfind": _LEARNING,
}


def renewed(argv: Sequence[str]) -> list[str]:
    """Return a command line with the options by the names they have now; what follows `--` is not an option."""
    words = list(argv)
    names = OLD_NAMES.get(words[0], {}) if words else {}
    end = words.index("--") if "--" in words else len(words)
    for position in range(1, end):
        option, equals, value = words[position].partition("=")
        words[position] = names.get(option, option) + equals + value
    return words
