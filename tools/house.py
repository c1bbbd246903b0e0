"""Measure the house: how large it is, how tangled, and how far one command has to walk. `python -m tools.house`"""

import ast
import contextlib
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tools.recipes import RECIPES, files_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "modelscope_cli", ROOT / "tests"
# From the bottom upwards; an import of a room above is an arrow up.
FLOORS = (
    ("plain_text", "interrupts", "ranks", "lean", "library_types", "errors", "paths"),
    ("records",),
    ("output_files",),
    ("tensor_file",),
    ("checkpoints", "hooks", "rules"),
    ("inputs",),
    ("models",),
    ("analysis",),
    ("training", "watching"),
    ("report",),
    ("testing", "examples", "reporting"),
    ("shell",),
    ("commands",),
)
# The imports that go up, written down where they are: a record is shown by what lies above it.
INVERSIONS = {"records/display.py": {"report"}}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file but for those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not is_type_checking(node):
            yield node
            yield from nodes_of(node)


def count_statements(tree: ast.AST) -> int:
    """Count statements without imports and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = list(ast.walk(tree))
    n_docstrings = sum(isinstance(node, documented) and ast.get_docstring(node) is not None for node in nodes)
    statements = sum(
        isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) for node in nodes
    )
    return statements - n_docstrings


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph(trees: dict[Path, ast.AST], *, with_types: bool = True) -> dict[str, set[str]]:
    """Return which modules of the package each imports, at its top or inside a function, without `INVERSIONS`.

    Args:
        with_types: also what only a type checker imports.
    """
    names = {module_of(file) for file in trees}
    graph: dict[str, set[str]] = {}
    for file, tree in trees.items():
        used: set[str] = set()
        for node in ast.walk(tree) if with_types else nodes_of(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                used |= (inner & names) or {node.module}
        inverted = (
            INVERSIONS.get(str(file.relative_to(PACKAGE)), set()) if file.is_relative_to(PACKAGE) else set()
        )
        own = {name for name in used & names if name.split(".")[1:2] != [*inverted]}
        graph[module_of(file)] = own - {module_of(file)}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import one another, over however many (Kosaraju's algorithm)."""

    def visit(start: str, edges: dict[str, set[str]], seen: set[str]) -> list[str]:
        left, waiting = [], [(start, iter(sorted(edges[start])))]
        seen.add(start)
        while waiting:
            node, further = waiting[-1]
            following = next((one for one in further if one not in seen), None)
            if following is None:
                left.append(node)
                waiting.pop()
            else:
                seen.add(following)
                waiting.append((following, iter(sorted(edges[following]))))
        return left

    seen: set[str] = set()
    order = [node for start in sorted(graph) if start not in seen for node in visit(start, graph, seen)]
    back: dict[str, set[str]] = defaultdict(set)
    for name, used in graph.items():
        for other in used:
            back[other].add(name)
    seen = set()
    groups = [visit(start, back, seen) for start in reversed(order) if start not in seen]
    return [sorted(group) for group in groups if len(group) > 1]


def arrows_up(graph: dict[str, set[str]]) -> list[str]:
    """Return the pairs of rooms of which the first imports the second, which lies above it."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    found = Counter(
        f"{one.split('.')[1]} -> {other.split('.')[1]}"
        for one, used in graph.items()
        for other in used
        if one.count(".") and other.count(".")
        if floor.get(other.split(".")[1], 0) > floor.get(one.split(".")[1], 99)
    )
    return [f"{pair} ({n})" for pair, n in sorted(found.items())]


def names_with_two_meanings(trees: dict[Path, ast.AST]) -> list[str]:
    """Return the class names that are defined more than once."""
    found = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, n in found.items() if n > 1)


def walk(line: list[str]) -> tuple[int, int, int]:
    """Return how many functions of the package a command line passes, in how many files, and its exit code."""
    passed: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            code = frame.f_code
            if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<"):  # no class body
                passed.add((code.co_filename, code.co_firstlineno))

    from modelscope_cli.shell.app import run

    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        sys.setprofile(note)
        try:
            code = run(line)
        finally:
            sys.setprofile(None)
    return len(passed), len({file for file, _ in passed}), code


def made_up_names(trees: dict[Path, ast.AST]) -> list[str]:
    """Return where a module of ours is found by a name that is put together while the program runs."""
    found = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "find_spec")):
                word = node.args[0] if node.args else None
                is_made = isinstance(word, ast.JoinedStr | ast.BinOp)
                if is_made and re.search("modelscope_cli|__name__|__package__", ast.unparse(word)):
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    return found


def own_sources_read(trees: dict[Path, ast.AST]) -> list[str]:
    """Return where Python sources of ours are read while the program runs."""
    reading = re.compile(r"open\(__file__|ast\.parse|getsource\(|rglob\('\*\.py'\)|glob\('\*/\w+\.py'\)")
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for file, tree in trees.items()
        if str(file.relative_to(PACKAGE)) not in _READ_THEIR_SOURCES
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and reading.match(ast.unparse(node))
    ]


# They parse the code of the user or of another library.
_READ_THEIR_SOURCES = ("models/importspec.py", "models/names.py")
# From the words of a command line to the call of the public function; what checks the keywords of any caller.
WAY_TO_THE_CALL = tuple(
    f"shell/{name}.py" for name in ("typer_app", "parameters", "options", "output_options", "named_model")
)
OF_ANY_CALLER = ("records/keywords.py", "records/refusals.py")


def code_and_declarations(names: tuple[str, ...]) -> tuple[int, int]:
    """Return the lines of some files: of code, and of declared options and keywords.

    Declared are `Name = Annotated[...]`, fields with an annotation, options of Typer, and typed dicts.
    """
    code = declared = 0
    for name in (name for name in names if (PACKAGE / name).is_file()):
        text = (PACKAGE / name).read_text("utf-8")
        tree = ast.parse(text)
        kept = [node for node in ast.walk(tree) if _is_declared(node)]
        inside = {n for node in kept for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        declared += len(inside)
        code += len(text.splitlines()) - len(inside)
    return code, declared


def _is_declared(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any("TypedDict" in ast.unparse(base) or "Keywords" in ast.unparse(base) for base in node.bases)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return "Annotated[" in ast.unparse(node) or ast.unparse(node).startswith("DEFAULTS")
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Option"


def own_keywords_of_stats() -> int:
    """Return the keywords of `ms.stats` that other functions of its kind do not share."""
    import modelscope_cli as ms

    shared = {
        name
        for other in ("predict", "explain", "grads")
        for name in inspect.signature(getattr(ms, other)).parameters
    }
    return len({*inspect.signature(ms.stats).parameters} - shared - {"model", "inputs"})


def measures(*, walks: bool = True) -> dict[str, Any]:
    """Return all measures by name."""
    trees: dict[Path, ast.AST] = {
        file: ast.parse(file.read_text("utf-8")) for file in sorted(PACKAGE.rglob("*.py"))
    }
    tests = sorted(file for file in TESTS.rglob("*.py"))
    graph = import_graph(trees)
    code, declared = code_and_declarations(WAY_TO_THE_CALL)
    found = {
        "lines": sum(len(file.read_text("utf-8").splitlines()) for file in trees),
        "statements": sum(map(count_statements, trees.values())),
        "files": len(trees),
        "files without __init__": sum(file.name != "__init__.py" for file in trees),
        "files of at most 100 lines": sum(len(file.read_text("utf-8").splitlines()) <= 100 for file in trees),
        "class names with two meanings": names_with_two_meanings(trees),
        "import circles": circles(graph),
        "arrows up": [*arrows_up(graph), *(f"{file} -> {', '.join(to)}" for file, to in INVERSIONS.items())],
        "modules found by a made-up name": made_up_names(trees),
        "own sources read at run time": own_sources_read(trees),
        "TYPE_CHECKING blocks": sum(
            is_type_checking(node) for tree in trees.values() for node in ast.walk(tree)
        ),
        "lines between argv and the call": code,
        "  and declared options": declared,
        "  keywords and refusals": sum(code_and_declarations(OF_ANY_CALLER)),
        "own keywords of ms.stats": own_keywords_of_stats(),
        "test lines": sum(len(file.read_text("utf-8").splitlines()) for file in tests),
        "  without the bench's programs": sum(
            len(file.read_text("utf-8").splitlines()) for file in tests if "programs" not in file.parts
        ),
        "test files": len(tests),
        **{f"files for a {name}": len(files_of(name)) for name in RECIPES},
    }
    if walks:
        star = str(ROOT / "samples" / "star.png")
        functions, files, code = walk(["stats", "resnet18", star, "-w", "none", "-q"])
        found |= {"functions of stats": functions, "files of stats": files, "exit code of stats": code}
    return found


def main(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MSCOPE_CACHE": "0", "MSCOPE_OFFLINE": "1", "TORCH_HOME": folder}
        found = measures()
    if "--json" in words:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        shown = f"{len(value)}" if isinstance(value, list) else f"{value:,}"
        print(f"{name:<32}{shown:>8}")
        for one in value if isinstance(value, list) and "--all" in words else ():
            print(f"    {one if isinstance(one, str) else ', '.join(one)}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
