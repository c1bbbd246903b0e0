"""Words on screen: those that readers did not understand do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "modelscope_cli"

WORDS = r"stands?|lies|mend(s|ed)?|deserves?|nobody|somebody|whoever|behind|anew|picture|to the last bit"


def texts(path: Path) -> list[tuple[int, str]]:
    """Return the strings of a file that may reach the screen: no docstrings but those of public functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", ())]
            if not any("spelled_out" in mark or mark.startswith("command") for mark in marks):
                hidden.add(id(node.body[0].value))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            found.append((node.lineno, "".join(parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            found.append((node.lineno, node.value))
    return [(line, " ".join(text.split())) for line, text in found if " " in text.strip()]


@pytest.fixture(scope="module")
def on_screen() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(PACKAGE)}:{line}", text)
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in texts(path)
    ]


def test_some_words_are_not_used_on_screen(on_screen):
    pattern = re.compile(rf"(?<![-\w])({WORDS})(?![-\w])", re.IGNORECASE)
    assert [one for one in on_screen if pattern.search(one[1])] == []


def test_a_share_has_a_space_before_its_sign():
    """As the vocabulary has it, `26 %`: `percent` of `records/naming.py` writes it so."""
    assert [str(path) for path in PACKAGE.rglob("*.py") if re.search(r":\.\d%\}", path.read_text())] == []
