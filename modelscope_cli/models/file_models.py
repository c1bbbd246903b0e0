"""The models that a Python file defines, by reading it: nothing of it is run. Standard library only."""

import ast
from pathlib import Path


def models_in(path: Path) -> list[str]:
    """Return the names of the modules that a file defines, those first that no other one is made of.

    A class is taken for a module if one of its bases is called so (`nn.Module`, `nn.Sequential`), or is such a
    class of the same file. Empty for a file that cannot be read.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: dict[str, ast.ClassDef] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(("Module", "Sequential")) or base in found for base in bases):
                found[node.name] = node
    used = {
        inner.id
        for name, node in found.items()
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and inner.id != name
    }
    return sorted(found, key=lambda name: name in used)
