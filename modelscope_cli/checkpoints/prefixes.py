"""What wrappers put before every name of a state dict: `module.`, `_orig_mod.`, `net.`. Standard library."""

import re
from collections.abc import Collection, Iterator

_WRAPPERS = ("module.", "model.", "_orig_mod.")
_MAX_PREFIXES = 3
# Published before its layers were renamed; torchvision does the same when it loads them.
_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


def without_prefixes(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ways to read `names`: what is taken away, and the names that are left, by the full ones.

    First as they are. The wrappers of torch may stand before some names only (counters stand beside them), any
    other word before all of them.
    """
    readings = [("", {name: _DENSENET.sub(r"\1\2.", name) for name in names})]
    yield readings[0]
    for _ in range(_MAX_PREFIXES):
        readings = [
            (removed + prefix, {full: name.removeprefix(prefix) for full, name in reading.items()})
            for removed, reading in readings
            for prefix in _prefixes(reading.values())
        ]
        yield from readings


def _prefixes(names: Collection[str]) -> list[str]:
    found = [prefix for prefix in _WRAPPERS if any(name.startswith(prefix) for name in names)]
    first = next(iter(names), "").partition(".")
    common = first[0] + first[1]
    if first[1] and common not in found and all(name.startswith(common) for name in names):
        found.append(common)
    return found
