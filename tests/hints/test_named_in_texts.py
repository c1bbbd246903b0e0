"""Every option and every command that a text for people names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pasting

import modelscope_cli
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.synonyms import OPTIONS

# Of programs of others (git, pip, torchrun, gunzip), of scripts that are watched, former names, and what other
# tools call our options.
_THEIRS = {
    "--include", "--force-reinstall", "--upgrade", "--standalone", "--nproc-per-node", "--nnodes", "--keep",
}  # fmt: skip
_THEIRS |= {"--allow-writes"}  # of the server for agents
_THEIRS |= {"--epochs", "--variant", "--b-", "--no-", *OPTIONS}
_THEIRS |= {option.rstrip("0123456789") for option in OPTIONS}  # --lr0
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
_COMMAND = re.compile(r"modelscope ([a-z]+)\b((?:(?!modelscope |`|\bor\b|;).)*)")
_EVERYWHERE = {"--help", "--help-all", "--version", "--install-completion", "--show-completion", "--debug"}


@cache
def texts():
    """Return all strings of the program with the files they are in; what stands in braces is left open."""
    return [
        (path, text)
        for path in sorted(Path(modelscope_cli.__file__).parent.rglob("*.py"))
        for text in _texts_in(path)
    ]


def _texts_in(path):
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    for node in joined:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_every_option_exists():
    known = {option for command in COMMANDS for option in pasting.parameters(command)} | _EVERYWHERE | _THEIRS
    strange = {
        f"{path.name}: {option}"
        for path, text in texts()
        for option in _OPTION.findall(text)
        if option not in known and not text.startswith("--_")
    }
    assert strange == set()


def test_every_command_exists_and_has_the_options_named_with_it():
    wrong = set()
    for path, text in texts():
        for name, rest in _COMMAND.findall(text):
            said = rest.split("   ")[0]
            if name in COMMANDS:
                known = {*pasting.parameters(name), *_EVERYWHERE, *_THEIRS}
                wrong |= {
                    f"{path.name}: {name} has no {one}" for one in _OPTION.findall(said) if one not in known
                }
            elif re.search(r"(^|\W)modelscope " + name + r"( --|   | [A-Z]{3}| \.\.\.)", text):
                wrong.add(f"{path.name}: there is no command '{name}'")
    assert wrong == set()
