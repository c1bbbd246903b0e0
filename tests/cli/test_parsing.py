"""A command is called with the same values whether or not Typer has them checked."""

import functools
import os
from importlib import import_module

import pytest
import typer

from modelscope_cli.shell.help import Command
from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parsing import LeanParsing

TEXTS = ("a=b", __file__, "3")


def telling(name):
    """Return the command of this name, but it returns what it is called with."""
    function = getattr(import_module(f"modelscope_cli.commands.{name}.command"), name)

    @functools.wraps(function)
    def tell(**values):
        return {name: (type(value), value) for name, value in values.items()}

    app = typer.Typer(add_completion=False)
    app.command(name, cls=Command)(tell)
    return typer.main.get_command(app)


def words_of(param, turn):
    """Return how this parameter is typed; every `turn` in another way."""
    text = TEXTS[turn]
    if param.param_type_name == "argument":
        return [text] * (2 if param.nargs == -1 else 1)
    if param.is_flag:
        return [(param.secondary_opts or param.opts)[0]] if turn else [param.opts[0]]
    return [f"{param.opts[-1]}={text}"] * (2 if param.multiple else 1)


def called(command, words):
    try:
        return command.main(list(words), standalone_mode=False)
    except Exception as error:  # whatever Typer raises
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_those_of_typer(name, monkeypatch):
    command = telling(name)
    params = [param for param in command.params if not param.is_eager]
    needed = [word for param in params if param.required for word in words_of(param, 0)]
    lines = [[], needed, [*needed, "one", "word", "more"], ["--no-such-option"], [*needed, "--seed=x"]]
    lines += [
        [*(needed if not param.required else ()), *words_of(param, turn)]
        for param in params
        for turn in range(len(TEXTS))
    ]
    ours = [called(command, line) for line in lines]
    assert any(isinstance(values, dict) for values in ours)
    monkeypatch.delattr(LeanParsing, "parse_args")
    assert ours == [called(command, line) for line in lines]


def test_a_file_that_may_not_be_read_is_refused_by_typer(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    kind, message = called(telling("weights"), [__file__])
    assert kind == "BadParameter"
    assert "not readable" in message
