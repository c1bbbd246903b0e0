"""Planted mistakes: does the suite notice them, before and after the code is moved?

    python -m tools.mistakes draw            # choose them by a seeded generator
    python -m tools.mistakes check           # find the lines again, and tell which were rewritten
    python -m tools.mistakes run             # plant each in a copy of the tree, and run tests that reach it
    python -m tools.mistakes run 3 17        # only these
    python -m tools.mistakes run 3 --whole   # with as many tests as it takes

A mistake is one changed line: another constant, `<` for `<=`, a branch that is never taken, two arguments
exchanged, `and` for `or`, `+` for `-`. `tests/bench/mistakes.json` keeps it as the name of its function and the
line before and after, so that it can be planted again where the function has moved to another file; `equivalent`
says why a mistake changes nothing that can be seen, and such a mistake is not planted. The test that caught it
the last time is run first, then others, from the nearest by imports outwards, for 40 CPU seconds;
`tests/bench/mistakes_caught.json` tells which test failed first.
"""

import ast
import builtins
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "bench"
MISTAKES, RESULTS = FOLDER / "mistakes.json", FOLDER / "mistakes_caught.json"
SEED, SECONDS = 27, 40
# How many of each folder, roughly by their size.
SHARES = {
    "analysis": 11, "watching": 7, "checkpoints": 6, "rules": 5, "report": 5, "hooks": 4,
    "inputs": 4, "models": 3, "training": 3, "records": 2,
}  # fmt: skip
COMPARISONS = {
    "Lt": ("<", "<="),
    "LtE": ("<=", "<"),
    "Gt": (">", ">="),
    "GtE": (">=", ">"),
    "Eq": ("==", "!="),
}
# Lines at which the mistake that was drawn first changes nothing that can be seen; another was drawn in its place.
EQUIVALENT: set[str] = set()
LONGEST = {
    "test_every_hint.py",
    "test_examples.py",
    "test_documents_run.py",
    "test_tour.py",
    "test_readme.py",
}


def functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the functions of a file, each with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{name}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                yield inner, node
            yield from functions(node, inner)


def changes(node: ast.AST, line: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds of mistakes that one node of a line allows, each with the line after it."""
    start, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    before, text, after = line[:start], line[start:end], line[end:]
    match node:
        case ast.Constant(value=bool(value)):
            yield "constant", f"{before}{not value}{after}"
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", f"{before}{value + 1 if value in (0, 1) else value * 2}{after}"
        case ast.Compare(ops=[operator]) as node if type(operator).__name__ in COMPARISONS:
            old, new = COMPARISONS[type(operator).__name__]
            if text.count(f" {old} ") == 1 and not isinstance(
                getattr(node.comparators[0], "value", 0), float
            ):
                yield "comparison", before + text.replace(f" {old} ", f" {new} ") + after
        case ast.If() if line.strip().startswith("if ") and line.rstrip().endswith(":"):
            yield "branch", re.sub(r"^(\s*)if .*:$", r"\1if False:", line)
        case ast.BoolOp(op=operator, values=[_, _]):
            old, new = (" and ", " or ") if isinstance(operator, ast.And) else (" or ", " and ")
            if text.count(old) == 1:
                yield "and for or", before + text.replace(old, new) + after
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator):
            old, new = (" + ", " - ") if isinstance(operator, ast.Add) else (" - ", " + ")
            if text.count(old) == 1 and '"' not in text:
                yield "sign", before + text.replace(old, new) + after
        case ast.Call(args=[ast.Name() as one, ast.Name() as other, *_]) if one.lineno == other.lineno:
            if one.id != other.id:
                swapped = (
                    line[: one.col_offset] + other.id + line[one.end_col_offset : other.col_offset] + one.id
                )
                yield "arguments", swapped + line[other.end_col_offset :]


def _is_easy(node: ast.AST) -> bool:
    is_builtin = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(builtins, node.func.id)
    )
    return is_builtin or isinstance(node, ast.JoinedStr)


def candidates(file: Path) -> Iterator[dict[str, str]]:
    """Yield every mistake that can be made in a file."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    for name, function in functions(ast.parse(source)):
        if name.rpartition(".")[2] in ("__repr__", "__str__") or "<" in name:
            continue
        inner = {id(node) for _, other in functions(function) for node in ast.walk(other)}
        parts = function.body  # type: ignore[attr-defined]
        body = [node for part in parts for node in ast.walk(part) if id(node) not in inner]
        # An index out of range, a built-in function called the wrong way round, and a message tell little.
        easy = [
            (part.lineno, part.col_offset, part.end_col_offset or 0)
            for node in body
            for part in (
                [node.slice] if isinstance(node, ast.Subscript) else [node] if _is_easy(node) else []
            )
        ]
        for node in body:
            line = lines[node.lineno - 1] if hasattr(node, "lineno") else ""
            is_one_line = isinstance(node, ast.If) or getattr(node, "end_lineno", 0) == getattr(
                node, "lineno", -1
            )
            is_easy = any(
                start <= node.col_offset < end
                for number, start, end in easy
                if number == getattr(node, "lineno", 0)
            )
            if (
                is_easy
                or not line.isascii()
                or not is_one_line
                or re.search(r"raise |Error\(|TYPE_CHECKING|^\s*\"", line)
            ):
                continue
            for kind, after in changes(node, line):
                if after != line and lines.count(line) == 1:
                    path = file.relative_to(ROOT).as_posix()
                    yield {
                        "file": path,
                        "function": name,
                        "kind": kind,
                        "before": line.strip(),
                        "after": after.strip(),
                    }


def draw() -> list[dict[str, str]]:
    """Choose the mistakes: of each folder its share, of each kind alike, no two in one file."""
    chosen: list[dict[str, str]] = []
    for folder, share in SHARES.items():
        found = [
            one
            for file in sorted((ROOT / "modelscope_cli" / folder).rglob("*.py"))
            for one in candidates(file)
        ]
        kinds = sorted({one["kind"] for one in found})
        for place in range(share):
            kind = kinds[(place + len(chosen)) % len(kinds)]
            taken = {one["file"] for one in chosen}
            free = [one for one in found if one["kind"] == kind and one["file"] not in taken]
            random.Random(f"{SEED} {folder} {place}").shuffle(free)
            chosen.append(next(one for one in free if one["before"] not in EQUIVALENT))
    return chosen


def planted(mistake: dict[str, str], root: Path) -> tuple[Path, str] | None:
    """Return the file of a tree that a mistake belongs into, and its text with it; None if the line is gone."""
    first = root / mistake["file"]
    others = sorted((root / "modelscope_cli").rglob("*.py"))
    last = mistake["function"].rpartition(".")[2]
    for wanted in (
        mistake["function"],
        last,
        None,
    ):  # the same function; one of its last name; the line alone
        for file in ([first] if first.exists() else []) + others:
            source = file.read_text(encoding="utf-8")
            if mistake["before"] not in source:
                continue
            lines = source.split("\n")
            for name, node in functions(ast.parse(source)):
                if wanted is not None and wanted not in (name, name.rpartition(".")[2]):
                    continue
                for number in range(node.lineno - 1, node.end_lineno):  # type: ignore[attr-defined]
                    line = lines[number]
                    if line.strip() == mistake["before"]:
                        lines[number] = line[: len(line) - len(line.lstrip())] + mistake["after"]
                        return file, "\n".join(lines)
    return None


@cache
def modules_of(file: Path, root: Path) -> set[str]:
    """Return the modules of the package that a file names in its imports, wherever they stand in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modelscope_cli"):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("modelscope_cli")}
    return {name for name in found if module_file(name, root) is not None}


def module_file(name: str, root: Path) -> Path | None:
    path = root / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.exists()), None)


def nearest_tests(target: Path, root: Path) -> list[str]:
    """Return test files, those first that are the fewest imports away from a module; of equals the shorter."""
    module = target.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    imports = {}
    for file in (root / "modelscope_cli").rglob("*.py"):
        name = file.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        imports[name] = modules_of(file, root) - {"modelscope_cli"}
    distance, edge = {module: 0}, {module}
    while edge:
        edge = {name for name, used in imports.items() if used & edge and name not in distance}
        distance |= dict.fromkeys(edge, max(distance.values()) + 1)
    found = []
    for file in sorted((root / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "pytest.mark.bench" in text or "pytestmark = pytest.mark.slow" in text:
            continue
        used = modules_of(file, root)
        command = file.stem.removeprefix("test_").partition("_")[0]
        if module_file(f"modelscope_cli.commands.{command}", root):
            used.add(f"modelscope_cli.commands.{command}")
        words = set(target.relative_to(root).with_suffix("").parts[1:]) - {"analysis", "__init__"}
        is_near = bool(
            words & {*file.relative_to(root).parts[1:-1], file.stem.removeprefix("test_"), command}
        )
        away = min((distance.get(name, 9) for name in used), default=9) - 1.5 * is_near
        if file.name in LONGEST:
            away += 20
        found.append((away, len(text), file.relative_to(root).as_posix()))
    return [name for _, _, name in sorted(found)]


def first_failure(
    tests: list[str], root: Path, broken: list[str], seconds: float = SECONDS
) -> tuple[int, str | None]:
    """Run tests of a tree until one fails or their time is up; return the exit code and the one that failed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    left, code = int(seconds), 0
    for part in (tests[:6], tests[6:]):  # to collect tests takes its time, too
        if not part or left < 3:
            break
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        done = subprocess.run(
            [*command, *(f"--deselect={name}" for name in broken), *part],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (left, left)),
        )
        code = done.returncode
        if failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M):
            return code, failed[1]
        left -= int(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before)
    return code, None


def caught(
    mistake: dict[str, str], root: Path, broken: list[str], known: str | None, seconds: float
) -> dict[str, object]:
    """Plant one mistake in a copy of the tree, run tests, put the line back; tell which test failed first.

    Args:
        broken: tests that fail without a mistake, too; is added to.
        known: the test that caught it the last time.
        seconds: CPU time for the tests.
    """
    if "equivalent" in mistake:
        return {"planted": False, "equivalent": mistake["equivalent"]}
    place = planted(mistake, root)
    if place is None:
        return {"planted": False}
    file, text = place
    tests = nearest_tests(file, root)
    original = file.read_text(encoding="utf-8")
    rounds = [[known]] if known and (root / known.partition("::")[0]).exists() else []
    rounds.append(tests if seconds > SECONDS else tests[:30])
    while True:
        file.write_text(text, encoding="utf-8")
        code, by = first_failure(rounds[0], root, broken, seconds)
        file.write_text(original, encoding="utf-8")
        if by is None and len(rounds) == 1:
            break
        if by is None:
            del rounds[0]
        elif first_failure([by], root, [])[1] is None:
            break
        else:
            broken.append(by)
    return {
        "planted": True,
        "file": file.relative_to(root).as_posix(),
        "caught": by is not None,
        "by": by,
        "code": code,
    }


def find_again(mistakes: list[dict[str, str]]) -> list[int]:
    """Renew the file of every mistake whose line has moved; return the numbers of those that are gone."""
    gone = []
    for number, mistake in enumerate(mistakes):
        place = planted(mistake, ROOT)
        if place is None:
            gone.append(number)
        else:
            mistake["file"] = place[0].relative_to(ROOT).as_posix()
    MISTAKES.write_text(json.dumps(mistakes, indent=1) + "\n", encoding="utf-8")
    return gone


def main(words: list[str]) -> None:
    what, numbers = words[0] if words else "", [int(word) for word in words[1:] if word.isdecimal()]
    seconds = 3600 if "--whole" in words else SECONDS
    FOLDER.mkdir(exist_ok=True)
    if what == "draw":
        MISTAKES.write_text(json.dumps(draw(), indent=1) + "\n", encoding="utf-8")
        return
    mistakes = json.loads(MISTAKES.read_text(encoding="utf-8"))
    if what == "check":
        gone = find_again(mistakes)
        print(
            f"{len(mistakes) - len(gone)} of {len(mistakes)} can be planted"
            + (f"; not {gone}" if gone else "")
        )
        return
    if what != "run":
        raise SystemExit(__doc__)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, files.split("\0")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        for number in numbers or range(len(mistakes)):
            known = results.get(str(number), {}).get("by")
            results[str(number)] = caught(mistakes[number], root, broken, known, seconds)
            print(
                number, mistakes[number]["file"], mistakes[number]["kind"], results[str(number)], flush=True
            )
            ordered = {key: results[key] for key in sorted(results, key=int)}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    n_caught, n_same = (
        sum(bool(one.get(key)) for one in results.values()) for key in ("caught", "equivalent")
    )
    print(f"{n_caught} of {len(results)} caught; {n_same} equivalent")


if __name__ == "__main__":
    main(sys.argv[1:])
