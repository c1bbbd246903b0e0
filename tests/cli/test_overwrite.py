"""A file that is there is only replaced with --force; the hint is the command that does."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console
from modelscope_cli.shell.output_options import OutputOptions

SICK = "{samples}/sick.safetensors"
FILES = [
    ("rules -o old.md", "old.md"),
    (f"weights {SICK} --convert old.safetensors", "old.safetensors"),
    ("check {TINY} --select MS1 -o old.xml", "old.xml"),
    ("stats {star} {tiny} -l head --plot old.png", "old.png"),
    ("stats {star} {tiny} -l head --hook save=old.safetensors@head", "old.safetensors"),
    ("featuremaps {star} {tiny} -l head --save-tensors old.safetensors", "old.safetensors"),
]


@pytest.mark.parametrize(("line", "name"), FILES)
def test_an_old_file_is_kept_until_forced(run, refused, cwd, line, name):
    (cwd / name).write_text("mine")
    message, hint = refused(line, 2)
    assert message == f"error: '{name}' already exists"
    assert (cwd / name).read_text() == "mine"
    assert [path.name for path in cwd.iterdir()] == [name]
    pasted = re.sub("[{}]", r"\g<0>\g<0>", hint.removeprefix("hint: modelscope "))
    assert run(pasted).code == 0
    assert (cwd / name).read_bytes() != b"mine"


@pytest.mark.parametrize(("given", "out", "others", "is_refused"), [
    ({}, None, None, False),
    ({}, Path("maps"), None, True),
    ({"force": True}, None, None, True),
    ({"force": True, "output": Path("a.csv")}, None, None, False),
    ({"force": True, "html": Path("a.html")}, None, None, False),
    ({"force": True}, None, Path("a.safetensors"), False),
    ({"force": True, "html": Path("a.html")}, Path("maps"), None, True),
])  # fmt: skip
def test_without_a_folder_force_is_about_the_files_that_are_written(
    given, out, others, is_refused, monkeypatch
):
    show = OutputOptions(**given)
    monkeypatch.setattr(console.settings, "argv", ("ablate",))
    assert show.folder(out, "net", beside=others, save=True) == (out or Path("runs/ablate-net"))
    with pytest.raises(UsageError, match="writes no folder") if is_refused else nullcontext():
        assert show.folder(out, "net", beside=others, save=False) is None
