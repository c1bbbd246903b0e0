"""The plan of the house, held by tests: one test a rule, whose message names everybody who breaks it."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

import modelscope_cli as ms
from modelscope_cli.records.documents import DOCUMENTS
from modelscope_cli.report.registry import view_for
from modelscope_cli.report.view import View
from modelscope_cli.shell.overview import GROUPS
from modelscope_cli.shell.parameters import function_of, parameters_of
from modelscope_cli.shell.typer_app import make_app
from tools import house

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "modelscope_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = get_command(make_app()).commands

# Who may open which doors; a file by its own name before its room.
PLAIN = {"records", "synonyms", "errors", "interrupts", "library_types", "paths", "plain_text", "ranks"}
WRITES = {*PLAIN, "output_files", "tensor_file"}
CORE = {*WRITES, "checkpoints", "hooks", "models", "inputs", "lean", "devices", "source_location"}
MAY_IMPORT = {
    "plain_text": set(),
    "library_types": set(),
    "interrupts": set(),
    "ranks": set(),
    "synonyms": set(),
    "source_location": set(),
    "errors": {"plain_text", "synonyms"},
    "devices": {"errors", "ranks"},
    "examples": WRITES,
    "paths": {"errors"},
    "records": PLAIN,
    "lean": set(),
    "checkpoints": {"records", "errors", "paths", "plain_text"},
    "hooks": {*PLAIN, "devices"},
    "rules": PLAIN,
    "output_files": {"errors", "interrupts", "paths", "records"},
    "tensor_file": {"output_files"},
    "report": {*WRITES, "rules"},
    "inputs": {*PLAIN, "hooks", "lean"},  # for the tensors in nested arguments
    "models": {*WRITES, "checkpoints", "devices", "inputs", "lean", "source_location"},  # and a cache
    "analysis": {*CORE, "rules"},
    "training": {*CORE, "analysis", "rules", "watching"},
    "watching": {*CORE, "analysis", "rules"},
    "reporting": {*WRITES, "checkpoints", "inputs", "models", "report"},
    "testing": {*WRITES, "analysis", "models", "report", "rules"},
    "shell": {*WRITES, "report", "models", "inputs", "hooks", "rules", "lean"},
    "commands": {
        *WRITES,
        "report",
        "reporting",
        "models",
        "inputs",
        "hooks",
        "rules",
        "checkpoints",
        "shell",
    },
}
# What a command needs to know of a request before anything heavy is imported.
LIGHT = re.compile(r"modelscope_cli\.(analysis\.\w+\.request|training\.request|watching\.ranks)\b")
STANDARD_LIBRARY_ONLY = (
    *("records", "checkpoints", "rules", "hooks/patterns.py", "hooks/spec.py"),
    *("errors.py", "interrupts.py", "paths.py", "plain_text.py", "ranks.py", "library_types.py"),
    "synonyms.py",
)
# They read the values of tensors, and ONNX files; all else in their room does without.
WITH_LIBRARIES = ("checkpoints/tensors.py", "checkpoints/onnx_protos.py")
HEAVY = {"torch", "torchvision", "PIL", "numpy", "matplotlib", "safetensors", "scipy", "msgspec"}
DRAWS = re.compile(
    r"report/\w+/figures\.py"
    r"|report/(canvas|layer_axis|training_figures|training_panels"
    r"|image_tiles|gallery|page/images)\.py"
)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def tree_of(path: Path) -> ast.Module:
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def imports_of(path: Path, *, is_top_only: bool = False) -> set[str]:
    """Return the modules a file imports; those under TYPE_CHECKING cost nothing and do not count."""
    found: set[str] = set()
    waiting = list(tree_of(path).body)
    while waiting:
        node = waiting.pop()
        if is_type_checking(node) or (is_top_only and isinstance(node, ast.FunctionDef)):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):  # no expression imports anything
            waiting += ast.iter_child_nodes(node)
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_folders_import_only_what_they_may():
    broken = []
    for path in FILES:
        room = room_of(path)
        if room in ("__init__", "__main__"):
            continue
        ours = {m for m in imports_of(path) if m.startswith("modelscope_cli.")}
        doors = {m.split(".")[1] for m in ours if not LIGHT.match(m)}
        strange = (
            doors - MAY_IMPORT[room] - {room} - {"__version__"} - house.INVERSIONS.get(named(path), set())
        )
        broken += [f"{named(path)} imports {door}" for door in sorted(strange)]
    assert not broken, broken


def test_only_commands_import_the_shell_and_no_command_another():
    broken = []
    for path in FILES:
        for module in imports_of(path):
            parts = module.split(".")
            if parts[:2] == ["modelscope_cli", "shell"] and room_of(path) not in (
                "shell",
                "commands",
                "__main__",
            ):
                broken.append(f"{named(path)} imports {module}")
            if parts[:2] == ["modelscope_cli", "commands"]:
                broken.append(f"{named(path)} imports {module}")
    assert not broken, broken


def test_modules_import_one_another_in_one_direction():
    graph = house.import_graph({path: tree_of(path) for path in FILES})
    assert not house.circles(graph)
    assert not house.arrows_up(graph)
    graph["modelscope_cli.errors"].add("modelscope_cli.shell.app")
    assert len(house.circles(graph)) == 1
    assert house.arrows_up(graph) == ["errors -> shell (1)"]


def test_the_plainest_need_the_standard_library_only():
    broken = []
    for path in FILES:
        if named(path).startswith(STANDARD_LIBRARY_ONLY) and named(path) not in WITH_LIBRARIES:
            used = packages(imports_of(path, is_top_only=True)) - {"modelscope_cli"} - sys.stdlib_module_names
            broken += [f"{named(path)} imports {package}" for package in sorted(used)]
    assert not broken, broken


def test_nothing_heavy_is_imported_before_a_command_runs():
    broken = []
    for path in FILES:
        is_typed = room_of(path) == "shell" or room_of(path) in ("commands", "__main__")
        if is_typed or path == PACKAGE / "__init__.py":
            used = packages(imports_of(path, is_top_only=True)) & HEAVY
            broken += [f"{named(path)} imports {package}" for package in sorted(used)]
    assert not broken, broken


def test_tables_know_neither_torch_nor_typer():
    broken = []
    for path in FILES:
        if room_of(path) == "report" and not DRAWS.fullmatch(named(path)):
            used = packages(imports_of(path)) & {*HEAVY, "typer"}
            broken += [f"{named(path)} imports {package}" for package in sorted(used)]
    assert not broken, broken


def test_one_module_writes_to_the_terminal():
    writing = {"print", "sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho"}
    broken = []
    for path in FILES:
        # The second is how a caller in Python, who has no console, sees what was asked for by name.
        if named(path) in ("shell/console.py", "records/progress.py"):
            continue
        called = [node.func for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
        calls = {ast.unparse(one) for one in called if isinstance(one, ast.Name | ast.Attribute)}
        broken += [f"{named(path)} calls {name}" for name in sorted(calls & writing)]
    assert not broken, broken


def test_files_stay_small():
    others = [path for folder in ("tests", "tools") for path in (PACKAGE.parent / folder).rglob("*.py")]
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (*FILES, *others)
    }
    assert not {name: size for name, size in sizes.items() if size > 500}


# Public functions whose name differs from their command's; keywords that only callers in Python have.
FUNCTIONS = {"rules": "list_rules", "report": "make_report", "models": "list_models"}
IN_PYTHON = {
    *("progress", "share", "each", "keep", "measure", "allow", "inputs", "data", "more", "data_set"),
    *(
        "columns",
        "attention",
        "what",
        "force",
        "num_classes",
        "input_shape",
        "output_kind",
        "batch",
        "workers",
    ),
}


def test_the_defaults_of_a_command_are_those_of_its_function():
    broken = []
    for name in COMMANDS:
        function = FUNCTIONS.get(name, name)
        options = parameters_of(name)
        signature = inspect.signature(getattr(ms, function)).parameters if function in ms.__all__ else {}
        for word, parameter in signature.items():
            if word not in options:
                broken += [f"{name}: {word} is not an option"] * (
                    word not in {*IN_PYTHON, "model", "optimizer"}
                )
            elif options[word].default not in (parameter.default, None) and not options[word].is_argument:
                broken.append(f"{name}: {word} is {options[word].default!r}, in Python {parameter.default!r}")
    assert not broken, broken


def test_the_overview_says_what_the_commands_say():
    for about in GROUPS.values():
        for name, sentence in about.items():
            assert inspect.getdoc(function_of(name)).partition("\n\n")[0].replace("\n", " ") == sentence


def test_the_table_of_functions_is_that_of_the_type_checker():
    """`modelscope_cli/__init__.py` says twice where each function lives: to type checkers, and to Python."""
    (block,) = (node for node in tree_of(PACKAGE / "__init__.py").body if is_type_checking(node))
    said = {alias.name: node.module for node in block.body for alias in node.names if alias.name != "testing"}
    assert said == ms._HOMES
    assert {*said, "testing", "__version__"} == {*ms.__all__}


def test_every_document_has_a_view():
    for name in DOCUMENTS:
        view = view_for(name.partition("-")[0])
        assert isinstance(view, View)
        assert view.columns
    with pytest.raises(KeyError):
        view_for("schema")


def test_every_option_says_what_it_does_and_every_help_shows_a_command():
    broken = []
    for name, command in COMMANDS.items():
        silent = [p.name for p in command.params if not getattr(p, "help", None) and p.name != "help"]
        broken += [f"{name}: --{option} has no help" for option in silent]
        if "Examples:" not in command.help or f"modelscope {name}" not in command.help:
            broken.append(f"{name}: its help has no example")
    assert not broken, broken


def test_a_rule_that_is_broken_is_seen(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import numpy\n"
    )
    assert packages(imports_of(path)) == {"typing", "numpy"}
    assert packages(imports_of(path, is_top_only=True)) == {"typing"}
    with pytest.raises(ValueError, match="is not in the subpath"):
        named(path)


PLAIN_MODULES = (
    "devices",
    "source_location",
    "errors",
    "interrupts",
    "lean",
    "library_types",
    "output_files",
    "paths",
    "plain_text",
    "ranks",
    "synonyms",
)
ALONE = """
import importlib, sys
rooms, modules = sys.argv[1].split(), sys.argv[2].split()
class Closed:
    def find_spec(self, name, path=None, target=None):
        inside = name.removeprefix("modelscope_cli.")
        is_open = any(f"{a}.".startswith(f"{b}.") for room in rooms for a, b in ((inside, room), (room, inside)))
        if inside != name and not is_open:
            raise ImportError(f"{name} is not one of {rooms}")
sys.meta_path.insert(0, Closed())
for module in modules:
    importlib.import_module(module)
print(*sys.modules)
"""


def import_alone(*folders: str, needs: tuple[str, ...], without: tuple[str, ...] = ()) -> set[str]:
    """Import every module of some folders in a process where others than `needs` raise ImportError."""
    files = [file for folder in folders for file in sorted((PACKAGE / folder).rglob("*.py"))]
    modules = [house.module_of(file) for file in files if named(file) not in without]
    words = (" ".join((*(folder.replace("/", ".") for folder in folders), *needs)), " ".join(modules))
    process = subprocess.run(
        [sys.executable, "-c", ALONE, *words], check=False, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split())


@pytest.mark.slow
def test_checkpoints_are_read_and_described_with_nothing_else_of_the_package():
    loaded = import_alone(
        "checkpoints",
        needs=("records", "errors", "library_types", "paths", "plain_text", "synonyms"),
        without=WITH_LIBRARIES,
    )
    assert not packages(loaded) & HEAVY
    assert "modelscope_cli.checkpoints.safety.scan" in loaded
    loaded = import_alone(
        "checkpoints",
        "analysis/weights",
        needs=("records", "analysis.statistics", "hooks.fetch", *PLAIN_MODULES),
    )
    assert "modelscope_cli.analysis.weights.weights" in loaded


@pytest.mark.slow
def test_trainings_are_watched_with_nothing_else_of_the_package():
    loaded = import_alone(
        "watching", needs=("records", "hooks", "rules", "analysis.statistics", *PLAIN_MODULES)
    )
    assert "modelscope_cli.watching.run_script" in loaded


@pytest.mark.slow
def test_a_folder_that_needs_more_is_seen():
    with pytest.raises(AssertionError, match=r"modelscope_cli\.\S+ is not one of"):
        import_alone("watching", needs=("records", *PLAIN_MODULES))
