"""What the shell completes: words of options, beside names of models (`test_startup.py`)."""

import pytest

from modelscope_cli.shell.app import run as run_argv


@pytest.fixture
def complete(monkeypatch, capsys):
    """Return what bash is offered for the last word of a line."""

    def complete_it(line):
        program, *words = line.split(" ")
        monkeypatch.setattr("sys.argv", [f"/somewhere/{program}"])
        monkeypatch.setenv(f"_{program.upper()}_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            run_argv([])
        return capsys.readouterr().out.split()

    return complete_it


@pytest.mark.parametrize(("line", "offered"), [
    ("modelscope sta", ["stats"]),
    ("modelscope stats resnet3", ["resnet34"]),
    ("modelscope stats resnet18 --work", ["--workers"]),
    ("modelscope train --optimizer nes", ["nesterov"]),
    ("modelscope lrfind --optimizer ad", ["adamw"]),
])  # fmt: skip
def test_words_are_completed(complete, line, offered):
    assert complete(line) == offered


def test_layers_are_those_of_a_summary_that_was_kept(complete, run, tmp_path, monkeypatch):
    monkeypatch.setenv("MSCOPE_CACHE", str(tmp_path))
    assert complete("modelscope stats resnet18 --layer layer1.0.c") == []
    assert complete("modelscope stats resnet18 --layer co") == ["conv"]
    monkeypatch.delenv("_MODELSCOPE_COMPLETE")
    run("summary resnet18")
    assert complete("modelscope stats resnet18 --layer layer1.0.c") == ["layer1.0.conv1", "layer1.0.conv2"]
    assert complete("modelscope grads -m resnet18 --exclude f") == ["fc"]


def test_the_short_name_is_completed_too(complete):
    assert complete("mscope sta") == ["stats"]
