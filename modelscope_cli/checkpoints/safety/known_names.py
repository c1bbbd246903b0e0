"""Names used by common checkpoint writers, and what each does with its arguments. Standard library.

The names are listed in `known_names.txt`; any other name is unknown.
"""

from collections.abc import Iterator
from pathlib import Path

# Sections of the file: what a known name does with its arguments when called. Names in `ruled` have a rule of their
# own in `call_rules`.
KEEPS, KEEPS_FIRST, LISTS = "keeps", "keeps_first", "lists"
HASHES, READS, UNCALLED = "hashes", "reads", "uncalled"


def read_sections(file: str) -> dict[str, list[str]]:
    """Return the full names in each section of a text file in this folder.

    A line is `module, module: name name ...` or only full names, continued on the indented lines below it.
    """
    sections: dict[str, list[str]] = {}
    text = Path(__file__).with_name(file).read_text(encoding="utf-8").replace("\n    ", " ")
    for line in text.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            section += _names_in(line)
    return sections


def _names_in(line: str) -> Iterator[str]:
    modules, colon, names = line.rpartition(": ")
    for module in modules.split(", "):
        yield from (f"{module}.{name}" if colon else name for name in names.split())


_SECTIONS = read_sections("known_names.txt")
_DOES = {"weights_only": UNCALLED, "layers": UNCALLED, "enums": READS}
DOES: dict[str, str] = {
    name: _DOES.get(section, section)
    for section, names in _SECTIONS.items()
    for name in names
    if section != "ruled"
}
KNOWN_NAMES = frozenset(DOES).union(_SECTIONS["ruled"])
ENUMS = frozenset(_SECTIONS["enums"])
# Names allowed under weights_only=True.
WEIGHTS_ONLY = frozenset(_SECTIONS["weights_only"])
# Modules that torch refuses even if a user allows them: its `_blocklisted_modules`.
BLOCKED = frozenset({"sys", "os", "posix", "nt"})
