"""Where in your own source a layer is made, so that what is wrong with it can be shown beside the line."""

import ast
import inspect
import re
import sys
from pathlib import Path

from torch import nn

from modelscope_cli.records.check import SourceLine

_FOREIGN = ("site-packages", "dist-packages")


class Sources:
    """Finds the lines of a model's layers in the files of the repository we are in, or below the current folder.

    Args:
        spec: how the model was named: `path/to/file.py:attr` or `package.module:attr` say who built it.
    """

    def __init__(self, model: nn.Module, spec: str) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._builder = spec
        here = Path.cwd()
        self._root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)

    def find(self, layer: str | None) -> SourceLine | None:
        """Return the class of a layer, or the line in which the class around it makes the layer; else who built the
        model. None where nothing of that is in a file of ours.

        Args:
            layer: as findings name it, `block1.relu#1`; None for the model.
        """
        name = (layer or "").partition("#")[0]
        child = ""
        while True:
            found = self._in_class(self._modules.get(name), child)
            if found is not None or not name:
                return found or self._in_builder()
            name, _, child = name.rpartition(".")

    def _in_class(self, module: nn.Module | None, child: str) -> SourceLine | None:
        try:
            file = self._own(inspect.getsourcefile(type(module)))
            lines, first = inspect.getsourcelines(type(module)) if file else ([], 0)
        except (TypeError, OSError):  # a class of C, or of a shell
            return None
        if file is None:
            return None
        makes = re.compile(rf"\bself\.{re.escape(child)}\s*(:[^=]+)?=(?!=)")
        offset = next((i for i, line in enumerate(lines) if child and makes.search(line)), 0)
        return SourceLine(file, first + offset)

    def _in_builder(self) -> SourceLine | None:
        where, colon, attribute = self._builder.rpartition(":")
        if not colon:
            return None
        path = where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", None)
        file = self._own(path)
        return SourceLine(file, _line_of(attribute, Path(str(path)))) if file else None

    def _own(self, path: str | None) -> str | None:
        """Return a path as seen from the root of the repository, None where it is not in it."""
        if path is None:
            return None
        file = Path(path).resolve()
        if not file.is_relative_to(self._root.resolve()) or any(part in _FOREIGN for part in file.parts):
            return None
        return file.relative_to(self._root.resolve()).as_posix()


def _line_of(attribute: str, path: Path) -> int:
    """Return the line in which a file makes a name; the first where that cannot be told."""
    try:
        made = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError):  # it has changed since it was imported
        return 1
    for node in made:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        names = [getattr(target, "name", None) or getattr(target, "id", None) for target in targets]
        if attribute.partition(".")[0] in names:
            return node.lineno
    return 1
