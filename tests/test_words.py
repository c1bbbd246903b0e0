"""Words on screen: fragments and words that readers did not understand do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "modelscope_cli"

# Of forty sentences that newcomers had to read twice, the part that was in the way.
FRAGMENTS = """
running standard deviations away
deserve a look
positions that everything passes through
of equals the best mean place
unlike those it was trained on
0 the blank image and 1 the whole
edges do as well
adds up to
no optimizer holds it
is a hundredth of its highest
where every output and the loss are
times that at the model's output
guessing costs
guessing gets
, twice
looked at closely
equal to the last bit stands
farthest apart
kept by an earlier run
too large to be kept block by block
the usual one, as the model states none
cannot be had
they took turns
known from now on
more places: the JSON document
Which number of the output to follow
allows the coarser
as little as it takes
by equal amounts
Run nothing
Cut weights away
nothing is cut off
one value sees
fire it most
place {} of the pass
reads as it is spoken
gets what those before it made
and ask again
what is always the same
said how it was obtained
what all blocks add up to
""".strip().splitlines()
WORDS = r"stands?|lies|mend(s|ed)?|deserves?|nobody|somebody|whoever|behind|anew|picture|to the last bit"
# Words that mean something else where they are: a key of a record, a method, a part of a name.
ALLOWED = {"pictures", "--pictures"}


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


@pytest.fixture(scope="module")
def in_docs() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        (f"{page.relative_to(ROOT)}:{n}", line)
        for page in pages
        if page.name not in ("vocabulary.md", "schemas.md", "functions.md")
        for n, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    ]


def test_no_old_sentence_is_left(on_screen, in_docs):
    assert [one for one in (*on_screen, *in_docs) if any(part in one[1] for part in FRAGMENTS)] == []


def test_some_words_are_not_used_on_screen(on_screen):
    pattern = re.compile(rf"(?<![-\w])({WORDS})(?![-\w])", re.IGNORECASE)
    assert [one for one in on_screen if pattern.search(one[1])] == []


def test_a_share_has_a_space_before_its_sign():
    """As the vocabulary has it, `26 %`: `percent` of `records/naming.py` writes it so."""
    assert [str(path) for path in PACKAGE.rglob("*.py") if re.search(r":\.\d%\}", path.read_text())] == []
