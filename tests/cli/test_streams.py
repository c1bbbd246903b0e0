"""stdin, stdout and stderr closed, full, or without a reader: the exit code still means what it says."""

import contextlib
import io
import itertools
import os
import subprocess
import sys

import pytest

from modelscope_cli.shell.live import take_every_character

# Each ends with 0 where all streams work. Where two stand for one command, the first writes no folder.
COMMANDS = {
    "watch": "watch --report {log}",
    "summary": "summary {TINY}",
    "featuremaps": "featuremaps {star} {tiny} -l head --size 32",
    "predict": "predict {star} {tiny}",
    "train": "train -m {TINY} --pictures 20 --size 16 --steps 1 --batch 4",
    "rules": "rules",
}
NO_FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """What is left of a run that was watched and killed."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "log.jsonl").write_text(
        '{"begin":{"version":4,"script":"train.py","argv":[],"rank":0,"world":1}}\n'
    )
    return folder


@pytest.fixture
def broken():
    """Return a function that gives a stream that is closed, full, or whose reader has gone."""
    opened = []

    def give(kind):
        if kind == "closed":
            return None
        reading, writing = os.pipe() if kind == "unread" else (None, "/dev/full")
        if reading is not None:
            os.close(reading)
        opened.append(open(writing, "w"))  # noqa: SIM115
        return opened[-1]

    yield give
    for stream in opened:
        with contextlib.suppress(OSError):
            stream.close()


KINDS = ["closed", pytest.param("full", marks=NO_FULL), "unread"]
# Streams are looked after in one place for all commands: each meets one that is broken, each kind of break several.
IN_TURN = [
    pytest.param(name, kind, marks=NO_FULL if kind == "full" else ())
    for name, kind in zip(COMMANDS, itertools.cycle(("closed", "full", "unread")), strict=False)
]


@pytest.mark.parametrize(("name", "kind"), IN_TURN)
def test_a_result_that_cannot_be_written(run, monkeypatch, broken, log, name, kind):
    monkeypatch.setattr(sys, "stdout", broken(kind))
    outcome = run(f"{COMMANDS[name]} -q", expect=0 if kind == "unread" else 4, log=log)
    assert ("error: cannot write: " in outcome.err) == (kind != "unread")


@pytest.mark.parametrize("format", ["table", "json"])
@pytest.mark.parametrize("kind", [pytest.param("full", marks=NO_FULL), "unread"])
def test_no_format_can_be_written(run, monkeypatch, broken, kind, format):
    stream = broken(kind)
    monkeypatch.setattr(sys, "stdout", stream)
    outcome = run(f"models -q --format {format}", expect=4 if kind == "full" else 0)
    if kind == "full":
        assert outcome.err.startswith("error: cannot write: No space left on device\n\nhint: ")
    else:
        assert outcome.err == ""
        stream.write("more")  # what is left over must not trouble the end of the process
        stream.flush()


@pytest.mark.parametrize(("name", "kind"), IN_TURN)
def test_notes_that_cannot_be_written_change_no_result(run, monkeypatch, broken, log, name, kind):
    monkeypatch.setattr(sys, "stderr", broken(kind))
    outcome = run(f"{COMMANDS[name]} --format json", log=log)
    assert outcome.out.startswith("{")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("line", "code"), [("rules --nonsense", 2), ("weights lost.pt", 4)])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(run, monkeypatch, broken, line, code, kind):
    monkeypatch.setattr(sys, "stderr", broken(kind))
    run(line, expect=code)


def test_a_finding_keeps_its_exit_code_without_a_stderr(run, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    run("diff {samples}/sick.safetensors {samples}/tiny_resnet.safetensors -q", expect=1)


@pytest.mark.parametrize("line", ["predict - {tiny}", "stats - {tiny} -l head"])
def test_standard_input_is_closed(run, monkeypatch, line):
    monkeypatch.setattr(sys, "stdin", None)
    assert "nothing came in on standard input" in run(line, expect=4).err


# (redirection, exit code, the beginning of stdout); whole processes, as the shell starts them.
PROCESSES = [
    ("rules 2>&-", 0, "code\t"),
    ("rules >&-", 4, ""),
    ("--help >&-", 4, ""),
    ("rules <&- 2>&-", 0, "code\t"),
    pytest.param("rules 2>/dev/full", 0, "code\t", marks=NO_FULL),
    pytest.param("--help >/dev/full", 4, "", marks=NO_FULL),
    pytest.param("rules >/dev/full 2>/dev/full", 4, "", marks=NO_FULL),
    pytest.param("nonsense 2>/dev/full", 2, "", marks=NO_FULL),
]


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")
@pytest.mark.parametrize(("line", "code", "out"), PROCESSES)
def test_a_process(cwd, line, code, out):
    command = f"'{sys.executable}' -m modelscope_cli {line}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert bool(done.stdout) == bool(out)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_cannot_be_encoded_is_written_in_ascii(encoding):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding)
    take_every_character(stream)
    stream.write("▁▂▃▄▅▆▇█ layer1…conv ⋯ 3 more → \udcfc 猫")
    stream.flush()
    assert written.getvalue().decode(encoding).replace("…", "~") == ".:-=+*%# layer1~conv ... 3 more -> ? ?"
