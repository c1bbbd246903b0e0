"""No option that is a number takes one that nobody can mean; the options are found in the commands themselves."""

import pytest

from modelscope_cli.shell.overview import COMMANDS
from modelscope_cli.shell.parameters import parameters_of

# What has to stand in a command line beside the option.
NEEDED = {
    **{"summary": "{TINY}", "check": "{TINY}", "predict": "{star} {tiny}"},
    **{"diff": "{TINY} {TINY}", "weights": "{samples}/sick.safetensors", "watch": "script.py"},
    **{"report": "results", "rules": "", "models": ""},
}
ABSURD = (2**63, -(2**63), "1e308", "nan", "-inf", "9" * 5000)


def numbers():
    """Yield the command and the option of every parameter that is an `int` or a `float`."""
    for command in COMMANDS:
        for one in parameters_of(command).values():
            if one.kind in (int, float):
                yield command, one.names[0]


def test_there_are_numbers():
    assert len(list(numbers())) > 60


@pytest.mark.parametrize(("command", "option"), list(numbers()))
def test_absurd_numbers_are_refused(refused, command, option):
    for number in ABSURD:
        message, hint = refused(f"{command} {option}={number} {NEEDED.get(command, '{tiny}')}", 2)
        assert option in message
        assert len(message) < 500
        assert f" {option} " in hint


# Numbers inside of words.
WRITTEN = [
    *(("stats {star} {tiny}", option, "0.5,{},0.5") for option in ("--mean", "--std")),
    *(("stats {star} {tiny}", option, "{}") for option in ("--mean", "--std", "--size")),
    ("stats {tiny}", "--input-shape", "1,3,{},8"),
]


@pytest.mark.parametrize(("line", "option", "form"), WRITTEN)
def test_absurd_numbers_in_words_are_refused(run, line, option, form):
    for number in ABSURD:
        if form == "8/{}" and number in (2**63 - 1, 2**63, "1e308", "inf", "-inf", "9" * 5000):
            continue  # a small share, or none
        outcome = run(f"{line} {option}={form.format(number)}", expect=2)
        assert "\nhint: " in outcome.err
        assert "set_int_max_str_digits" not in outcome.err
