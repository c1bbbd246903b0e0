"""The plan of the house, held by tests: who imports whom, who writes, how long a file may be, what help says."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from modelscope_cli.shell.app import make_app

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "modelscope_cli"
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
COMMANDS = get_command(make_app()).commands

DRAWING = {
    *("grids", "gallery", "plots", "palette", "correlations", "flow", "ablation_plot", "ablation_gallery"),
    *("prune_plot", "prune_report", "attack_pictures", "attack_report", "diff_plot"),
    *("train_plot", "train_report", "lrfind_plot", "watch_plots", "watch_report"),
}
HEAVY = {"torch", "torchvision", "PIL", "numpy", "matplotlib", "safetensors", "scipy"}


def imports_of(path: Path, *, is_top_only: bool) -> set[str]:
    """Return the modules a file imports; those under TYPE_CHECKING cost nothing and do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    nodes = ast.iter_child_nodes(tree) if is_top_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def rooms(modules: set[str]) -> set[str]:
    """Return the rooms of the house among modules: `cli`, `models`, `records` ..."""
    return {module.split(".")[1] for module in modules if module.startswith("modelscope_cli.")}


def packages(modules: set[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


PLAINEST = [
    *("errors", "hooks/patterns", "hooks/spec", "hooks/vocabulary", "models/names"),
    *("analysis/histogram", "analysis/moments", "analysis/marks"),
    *(f"analysis/{name}_request" for name in ("grads", "prune", "attack", "diff")),
    *("training/request", "training/suggest"),
    *(
        f"{room}/{path.stem}"
        for room in ("records", "checkpoints", "rules")
        for path in sorted((PACKAGE / room).glob("*.py"))
    ),
]


@pytest.mark.parametrize("name", PLAINEST)
def test_the_plainest_modules_need_the_standard_library_only(name):
    used = packages(imports_of(PACKAGE / f"{name}.py", is_top_only=True)) - {"modelscope_cli"}
    assert used <= sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nobody_but_the_front_door_imports_the_command_line(path):
    if path.parent.name == "cli" or path.name == "__main__.py":
        return
    assert "cli" not in rooms(imports_of(path, is_top_only=False))


ALLOWED = {
    "hooks": {"hooks", "records", "errors"},
    "checkpoints": {"checkpoints", "records", "errors"},
    "models": {"models", "checkpoints", "inputs", "records", "errors", "lean"},
    "inputs": {"inputs", "records", "errors", "lean"},
    "analysis": {"analysis", "checkpoints", "hooks", "models", "inputs", "records", "errors", "lean"},
    "training": {"training", "hooks", "models", "inputs", "analysis", "records", "rules", "errors", "lean"},
    "watching": {"watching", "hooks", "analysis", "rules", "records", "errors"},
    "report": {"report", "records", "errors"},
    "rules": {"rules", "records", "errors"},
}


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name in ALLOWED], ids=str)
def test_rooms_open_only_the_doors_they_may(path):
    assert rooms(imports_of(path, is_top_only=False)) <= ALLOWED[path.parent.name]


@pytest.mark.parametrize("path", sorted((PACKAGE / "report").glob("*.py")), ids=lambda path: path.stem)
def test_reports_in_text_know_neither_torch_nor_typer(path):
    used = packages(imports_of(path, is_top_only=False))
    assert "typer" not in used
    if path.stem not in DRAWING:
        assert not used & HEAVY


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_commands_import_nothing_heavy_before_they_run(path):
    assert not packages(imports_of(path, is_top_only=True)) & HEAVY


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_one_module_writes_to_the_terminal(path):
    if path.name == "_console.py":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"print", "sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho"}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_a_section_in_the_readme(name):
    assert f"\n## {name}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def examples() -> list[str]:
    """Return every command line in a help text, in the README and in the samples' README."""
    texts = [command.help or "" for command in COMMANDS.values()]
    texts += [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "samples/README.md")]
    return sorted(
        {line for text in texts for line in re.findall(r"^[ $]*(modelscope [^|`>\n]+)$", text, re.MULTILINE)}
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_help_has_examples(name):
    help_text = COMMANDS[name].help
    assert "Examples:" in help_text
    assert f"modelscope {name} " in help_text or help_text.rstrip().endswith(f"modelscope {name}")


@pytest.mark.parametrize("line", examples())
def test_examples_parse_and_their_samples_are_there(line):
    name, *arguments = shlex.split(line)[1:]
    command = COMMANDS[name]
    with command.make_context(name, arguments, resilient_parsing=False):
        pass
    for argument in arguments:
        if argument.startswith("samples/"):
            assert (ROOT / argument.partition(":")[0]).exists()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_does(name):
    assert not [p.name for p in COMMANDS[name].params if not getattr(p, "help", None) and p.name != "help"]
