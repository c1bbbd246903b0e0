"""The errors a person sees: what is wrong, what to run next, and the exit code that goes with it."""

import difflib
from collections.abc import Iterable
from typing import Any

from modelscope_cli.plain_text import plain


class ModelscopeError(Exception):
    """Something the user can act on; printed as `error: message`, a blank line, `hint: hint`.

    Attributes:
        message: one line that quotes what was typed, whatever that holds; no full stop.
        hint: a command that can be run, or None where there is none.
        exit_code: 2 usage, 4 cannot run (see the exit codes in the README).
        record: what was found until then, where that is something; else None.
    """

    exit_code = 4
    record: Any = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = plain(message)
        self.hint = hint and plain(hint)
        super().__init__(self.message)

    def speak_python(self) -> None:
        """Show the hint below a traceback, and say of one that is about the command line that it is."""
        if self.hint is None or getattr(self, "__notes__", None):
            return
        if self.hint.startswith(("-", "modelscope ", "leave out --")):
            self.hint = f"on the command line: {self.hint}"
        self.add_note(f"hint: {self.hint}")


class UsageError(ModelscopeError):
    """What was typed cannot mean anything: an unknown name, a pattern that matches nothing. Exit code 2."""

    exit_code = 2


class CannotRunError(ModelscopeError):
    """What was typed is clear but cannot be done here: device, file, weights, forward. Exit code 4."""


OUT_OF_MEMORY = "out of memory"
LESS_MEMORY = "--batch 1, a smaller --size, or --device cpu"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the memory of the machine or of its accelerator did not suffice; torch need not be imported."""
    is_torch = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return isinstance(error, MemoryError) or is_torch or "can't allocate memory" in str(error)


def nearest(word: str, known: Iterable[str], n: int = 3) -> str:
    """Return the names most like `word` as a phrase, `"did you mean a, b"`; empty where nothing is near."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), list(by_lower), n=n, cutoff=0.5)
    return "did you mean " + ", ".join(by_lower[match] for match in matches) if matches else ""
