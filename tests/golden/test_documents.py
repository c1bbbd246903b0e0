"""What every command prints, kept as files: documents, columns, pages, help, schemas, exit codes.

`pytest tests/golden --update-golden` rewrites them; look at what changed.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documents import assert_fits
from golden_digest import columns, differences, document, page
from golden_in_python import look_at_it_in_python
from golden_lines import IN_PYTHON, LINES, WRONG
from safetensors.torch import load_file

from modelscope_cli.records.documents import DOCUMENTS, schema
from modelscope_cli.records.page_data import extract
from modelscope_cli.shell.app import run
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.overview import COMMANDS, FORMER

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.numeric]

HERE = Path(__file__).parent
TWICE = ("stats", "report")  # computes more for a document; the page is of another result
OWN = ("tiny_resnet", "dataset", "short", "own", "tiny_vit", "two_inputs")


class Bad:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the samples and the small files that lines name, once."""
    folder = tmp_path_factory.mktemp("files")
    assert run(["demo", str(folder / "demo")]) == 0
    for file in (HERE / "files").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    torch.manual_seed(0)
    parts = {"model": torch.nn.Linear(3, 2).state_dict(), "epoch": 3, "optimizer": {"lr": 0.1}}
    torch.save(parts, folder / "pickled.pt")
    torch.save({"model": {"w": torch.ones(2)}, "x": Bad()}, folder / "dangerous.pt")
    weights = load_file(folder / "demo" / "tiny_resnet.safetensors")
    halved = {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    torch.save({"state_dict": weights, "state_dict_ema": halved}, folder / "wrapped.pt")
    return folder


@pytest.fixture
def typed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], SimpleNamespace]:
    """Return a function that runs a line, of which a program before `&&` runs first, in a fresh folder."""
    for name, value in {
        "MSCOPE_OFFLINE": "1",
        "COLUMNS": "80",
        "TORCH_HOME": str(tmp_path / "torch"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("time.perf_counter", lambda: 1000.0)  # what is measured is the same in every run
    monkeypatch.setattr("sys.path", sys.path.copy())
    folders = iter(range(10_000))

    def run_it(line: str) -> SimpleNamespace:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        monkeypatch.chdir(folder)
        for file in files.iterdir():
            (folder / file.name).symlink_to(file)
        for one in line.split(" && "):
            capsys.readouterr()
            code = run(shlex.split(one))
            for name in OWN:
                sys.modules.pop(name, None)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, folder=folder)

    return run_it


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The records that were printed, in that order."""
    seen: list[Any] = []

    def remember(where: Any, sheet: Any, record: Any, *more: Any, **drawn: Any) -> None:
        seen.append(record)
        emit(where, sheet, record, *more, **drawn)

    for name in COMMANDS:
        module = import_module(f"modelscope_cli.commands.{name}")
        if hasattr(module, "emit"):
            monkeypatch.setattr(module, "emit", remember)
    return seen


def page_document(page: Path) -> dict[str, Any]:
    """Return the document that a page holds: it is what `--json` prints."""
    return extract(page.read_bytes())[0]


def hold(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Compare a text with the golden file of that name, or write it."""
    golden = HERE / "documents" / name
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    found = list(differences(text, golden.read_text(encoding="utf-8")))
    assert not found, "\n".join([f"{len(found)} lines differ from {golden.name}:", *found[:20]])


@pytest.mark.parametrize(
    "command", sorted({line.rpartition(" && ")[2].split()[0] for line in LINES.values()})
)
def test_what_a_command_prints(command, typed, records, request):
    lines = []
    for name, line in LINES.items():
        body, _, letters = line.partition(" #")
        before, _, last = body.rpartition(" && ")
        if last.split()[0] != command:
            continue
        before, rest = f"{before} && " if before else "", last.partition(" ")[2]
        lines += ["", f"$ {body}"]
        is_rough, letters = "~" in letters, letters.replace("~", "")
        if "a" in letters:
            done = typed(body)
            lines += [f"exit {done.code}", *re.sub(r"\d+(?:\.\d+)+|\d{2,}", "#", done.out).splitlines()]
            continue
        is_paged = "p" in letters or not letters
        is_once = not letters and command not in TWICE
        html = " --html page.html" if is_paged and "--html" not in rest else ""
        done = typed(f"{before}{command} {'--format tsv' if is_once else '--json'}{html} {rest}")
        assert done.code in (0, 1), (name, done.err)
        text = json.dumps(page_document(done.folder / "page.html")) if is_once else done.out
        lines += [f"exit {done.code}", "document", *document(text, is_rough=is_rough)]
        assert_fits(json.loads(text[text.index("{") :]))
        if is_paged:
            lines += ["page", *page((done.folder / "page.html").read_text(encoding="utf-8"))]
        if "t" in letters or not letters:
            done = done if is_once else typed(f"{before}{command} --format tsv {rest}")
            table = re.sub(r"\A(?:[^\t\n]*\n)+(?=.*\t)", "", done.out)  # without what a script printed
            lines += ["columns", *columns(table, is_rough=is_rough)]
            if name in IN_PYTHON:
                look_at_it_in_python(records[-1], table)
    hold(f"{command}.txt", "\n".join(lines).lstrip() + "\n", request)


def test_help(typed, request):
    texts = [f"$ {command} --help-all\n{typed(f'{command} --help-all').out}" for command in COMMANDS]
    hold("help.txt", "\n".join(texts), request)


def test_schemas(request):
    lines = []
    for name in DOCUMENTS:
        found = schema(name)
        kinds = found.pop("$defs", {})
        lines += ["", f"$ schema {name}", *fields(found, "")]
        for kind, part in sorted(kinds.items()):
            lines += [f"  {kind}", *fields(part, "    ")]
    hold("schemas.txt", "\n".join(lines).lstrip() + "\n", request)


def fields(part: dict[str, Any], indent: str) -> Iterator[str]:
    """Yield a line for each property of an object in a schema, with its type and without its description."""
    needed = part.get("required", ())
    for key, value in part.get("properties", {}).items():
        shown = json.dumps(without_words(value), separators=(",", ":"), sort_keys=True)
        yield f"{indent}{key}{'' if key in needed else '?'} {shown}"


def without_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_words(item) for key, item in value.items() if key not in ("description", "title")
        }
    return [without_words(item) for item in value] if isinstance(value, list) else value


def test_exit_codes(typed, request):
    hold("exit_codes.tsv", "".join(f"{typed(line).code}\t{line}\n" for line in WRONG), request)


def test_every_option_is_in_a_line():
    helped = (HERE / "documents" / "help.txt").read_text(encoding="utf-8")
    shared = "json format html all columns sort top output verbose quiet debug force weights checkpoint"
    letters = {"-d": "device", "-b": "batch", "-l": "layer", "-t": "target", "-m": "module", "-e": "epsilon"}
    missing = []
    for part in re.split(r"^\$ ", helped, flags=re.M)[1:]:
        command = part.split()[0]
        lines = [one for line in LINES.values() for one in line.partition(" #")[0].split(" && ")]
        words = {word.partition("=")[0] for one in lines if one.split()[0] == command for word in one.split()}
        words |= {f"--{letters[word]}" for word in words if word in letters}
        words |= {f"--{word}" for word in (*shared.split(), "model")}
        options = re.finditer(r"^  (?:(-\w), )?(--[\w-]+)(?:, (--no-[\w-]+))?", part, re.M)
        missing += [f"{command} {one[2]}" for one in options if not set(filter(None, one.groups())) & words]
    assert missing == []
    assert {*COMMANDS, *FORMER} - {"help"} == {
        line.rpartition(" && ")[2].split()[0] for line in LINES.values()
    }
