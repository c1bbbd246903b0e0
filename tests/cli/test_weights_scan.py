"""`modelscope weights` as a gate: exit codes, `--fail-on`, `--scan`, and the rules of `check` for files."""

import json
import os
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from torch.distributions import Normal

STATE = {"w": torch.ones(2)}


class Evil:
    def __reduce__(self):
        return os.system, ("exit 0",)


class Called:
    def __reduce__(self):
        return kept, ("a",)


def kept(name):
    return name


@pytest.fixture
def files(cwd):
    torch.save(STATE, "good.pt")
    torch.save({"state_dict": STATE, "noise": Normal(0.0, 1.0)}, "odd.pt")
    torch.save({"state_dict": STATE, "hook": Evil()}, "evil.pt")
    torch.save({"state_dict": STATE, "name": Called()}, "called.pt")
    (cwd / "text.pkl").write_bytes(b"cos\nsystem\n(S'exit 0'\ntR.")
    return cwd


@pytest.mark.parametrize(("name", "options", "code"), [
    ("good.pt", "", 0),
    ("good.pt", "--fail-on unknown", 0),
    ("odd.pt", "", 0),
    ("odd.pt", "--fail-on unknown", 1),
    ("called.pt", "", 1),
    ("called.pt", "--fail-on dangerous", 0),
    ("evil.pt", "--fail-on dangerous", 1),
    ("evil.pt", "", 1),
    ("evil.pt", "--fail-on never", 0),
    ("text.pkl", "", 1),
    ("text.pkl", "--fail-on never", 4),
    ("good.pt", "--fail-on always", 2),
])  # fmt: skip
def test_exit_codes(run, files, name, options, code):
    run(f"weights {name} {options}", expect=code)
    if code != 4:
        run(f"weights {name} {options} --scan", expect=code)


@pytest.mark.parametrize(("allow", "code"), [
    ('["test_weights_scan.*"]', 0),
    ('["*"]', 0),
    ('["other.*"]', 1),
    ("7", 2),
    ('["test_weights_scan"]', 1),
])  # fmt: skip
def test_a_project_allows_names_and_their_use_is_reported(run, files, samples, allow, code):
    (files / "pyproject.toml").write_text(f"[tool.modelscope]\nallow = {allow}\n")
    for options in ("", "--scan", "--fail-on unknown"):
        outcome = run(f"weights called.pt {options} --json", expect=code)
        assert ("allowed in 'called.pt': test_weights_scan.kept" in outcome.err) == (code == 0)
    if code == 0:
        assert outcome.json["safety"]["rank"] == "known"
        assert outcome.json["safety"]["allowed"] == ["test_weights_scan.kept"]
        assert "MS001" not in run(f"check {samples}/tiny_resnet.py:TinyResNet -c called.pt", expect=4).out
    run("weights evil.pt", expect=max(code, 1))


def test_the_document_is_written_where_the_file_is_refused(run, files):
    (files / "cut.pt").write_bytes((files / "evil.pt").read_bytes()[:-40])
    for name in ("text.pkl", "cut.pt"):
        document = run(f"weights {name} --json", expect=1 if name == "text.pkl" else 4).json
        assert document["error"]
        assert document["safety"]["rank"] != "known"
    assert run("weights text.pkl --json", expect=1).json["foreign"] == ["os.system"]


def test_a_folder_is_scanned_to_any_depth_and_not_beyond(run, files, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    shutil.move(files / "evil.pt", outside / "evil.pt")
    (files / "text.pkl").unlink()
    inside = files / "in"
    (inside / "a" / "b").mkdir(parents=True)
    (files / "good.pt").rename(inside / "a" / "b" / "model.jpg")
    (inside / "link.pt").symlink_to(outside / "evil.pt")
    (inside / "folder").symlink_to(outside)
    assert run("weights in --scan --fail-on unknown").column("file") == ["in/a/b/model.jpg"]
    shutil.copy(outside / "evil.pt", inside / "a" / "evil.txt")
    os.mkfifo(inside / "pipe")
    outcome = run("weights in --scan", expect=1)
    rows = {row["file"]: row for row in outcome.rows}
    assert rows["in/a/evil.txt"]["rank"] == "dangerous"
    assert "system('exit 0')" in rows["in/a/evil.txt"]["dangerous"]
    assert rows["in/pipe"]["problem"] == "not a plain file"
    (inside / "a" / "evil.txt").unlink()
    document = json.loads(run("weights in --scan --json", expect=4).out)
    assert document["schema"] == "modelscope/weights-scan/1"
    assert (document["rank"], document["passed"], len(document["files"])) == ("unknown", False, 2)


def test_a_file_that_is_not_judged_does_not_pass(run, files):
    (files / "evil.pt").unlink()
    (files / "called.pt").unlink()
    (files / "text.pkl").unlink()
    run("weights . --scan")
    (files / "model.gguf").write_bytes(b"GGUF" + bytes(90))
    for fail_on in ("call", "dangerous"):
        outcome = run(f"weights . --scan --fail-on {fail_on}", expect=4)
        (row,) = (row for row in outcome.rows if row["file"] == "model.gguf")
        assert row["rank"] == "unknown"
        assert "not judged: this tool judges what PyTorch, NumPy and safetensors load" in row["problem"]
    run("weights . --scan --fail-on unknown", expect=1)
    told = run("weights . --scan --format github", expect=4).out
    assert told.count("::error file=model.gguf,line=1,title=not judged::") == 1
    assert "nothing found in 2 of 3 files (code only; values are not judged); 1 not judged" in told


def test_an_archive_is_described_as_torch_loads_it(run, cwd):
    import zipfile

    torch.save({"hidden": torch.zeros(3)}, "a.pt")
    with zipfile.ZipFile("a.pt") as old, zipfile.ZipFile("b.pt", "w") as new:
        for name in old.namelist():
            new.writestr(name.replace("data.pkl", "DATA.PKL"), old.read(name))
        new.writestr("a/xdata.pkl", b"\x80\x02}.")
    outcome = run("weights b.pt")
    assert outcome.column("name") == ["hidden"]
    assert "it contains more pickles than torch.load reads: a/xdata.pkl" in outcome.err


def test_check_has_a_rule_for_it(run, files, samples):
    tiny = f"{samples}/tiny_resnet.py:TinyResNet"
    for name, code in (("evil.pt", 1), ("called.pt", 1), ("odd.pt", 4)):
        outcome = run(f"check {tiny} -c {name} --format github", expect=code)
        severity, rule = ("error", "MS001") if code == 1 else ("warning", "MS002")
        assert outcome.out.startswith(f"::{severity} file={name},line=1,title={rule} ")
    junit = ET.fromstring(run(f"check {tiny} -c evil.pt --format junit", expect=1).out)
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == [
        "MS001 dangerous-code"
    ]
    document = run(f"check {tiny} -c evil.pt --json", expect=1).json
    assert document["findings"][0]["code"] == "MS001"
    run(f"check {tiny} -c odd.pt --fail-on warning", expect=1)
    document = run(f"check {tiny} -c {samples}/tiny_resnet.safetensors --select MS0 --json").json
    assert (document["findings"], document["rules"][0]["judged"]) == ([], True)
    assert not run(f"check {tiny} --select MS001 --json", expect=4).json["rules"][0]["judged"]


def test_several_files_folders_and_globs_are_scanned(run, files):
    (files / "more").mkdir()
    shutil.copy("odd.pt", "more/odd.pt")
    outcome = run("weights --scan good.pt 'e*.pt' more good.pt --json", expect=1)
    assert [one["file"] for one in outcome.json["files"]] == [
        "good.pt",
        "evil.pt",
        os.path.join("more", "odd.pt"),
    ]
    assert "nothing to scan at 'no*.pt'" in run("weights --scan 'no*.pt'", expect=4).err
    refused = run("weights good.pt odd.pt", expect=2)
    assert "hint: modelscope weights --scan good.pt odd.pt" in refused.err


def test_the_summary_of_a_step_lists_only_findings(run, files, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    run("weights --scan good.pt evil.pt", expect=1)
    told = (files / "summary.md").read_text()
    assert "evil.pt" in told
    assert "| good.pt |" not in told
    assert "1 dangerous, 1 without unknown code" in told


PAGE = b"<!DOCTYPE html>\n<title>404</title>\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
OTHERS = {
    "a web page": (
        PAGE,
        b"\n  <html lang=en>",
        b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    ),
    "a git-lfs pointer to the file": (POINTER, POINTER.replace(b"\n", b"\r\n")),
    "empty (0 bytes)": (b"",),
    "filled with zeros": (bytes(5000),),
    "text, 'Entry not found'": (b"Entry not found", b"\xef\xbb\xbfEntry not found\r\n"),
    """text, '{"error":""": (b'{"error":"gone"}',),
    "a PNG image": (b"\x89PNG\r\n\x1a\n" + bytes(90),),
    "a PDF document": (b"%PDF-1.4\n",),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_named_like_a_checkpoint_and_is_none_does_not_pass(run, cwd, kind):
    for data in OTHERS[kind]:
        for name in ("a.pt", "a.pth", "a.bin", "a.ckpt", "a.safetensors", "a.onnx", "a.pth.tar", "a.pt2"):
            (cwd / name).write_bytes(data)
        torch.save(STATE, "good.pt")
        outcome = run("weights --scan good.pt 'a.*'", expect=4)
        *others, good = outcome.rows  # the worst first
        assert (good["rank"], good["problem"]) == ("known", "")
        assert {row["rank"] for row in others} == {"not a checkpoint"}
        assert all(row["problem"].startswith(f"not a checkpoint: {kind}") for row in others)
        document = run("weights --scan . --json", expect=4).json
        assert (document["rank"], document["passed"]) == ("not a checkpoint", False)
        assert "8 not a checkpoint, 1 without unknown code" in run("weights --scan .", expect=4).err


def test_what_is_not_named_like_a_checkpoint_may_be_text_but_no_pointer(run, cwd):
    for name, data in (("README.md", b"# read me\n"), ("page.html", PAGE), ("a.npy", b""), (".gitkeep", b"")):
        (cwd / name).write_bytes(data)
    (cwd / "a.npy").unlink()
    (cwd / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert {*run("weights --scan .").column("rank")} == {"known", "other file"}
    assert "1 without unknown code, 3 other files without a pickle" in run("weights --scan .").err
    (cwd / "README.md").write_bytes(POINTER)
    assert "not a checkpoint" in run("weights --scan .", expect=4).column("rank")


@pytest.mark.parametrize("kind", ["zip", "legacy", "module", "safetensors"])
def test_a_file_that_is_cut_anywhere_is_never_known(run, cwd, kind):
    from safetensors.torch import save_file

    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    whole = cwd / ("whole.safetensors" if kind == "safetensors" else "whole.pt")
    if kind == "safetensors":
        save_file(net.state_dict(), whole)
    else:
        saved = net if kind == "module" else net.state_dict()
        torch.save(saved, whole, _use_new_zipfile_serialization=kind == "zip")
    data = whole.read_bytes()
    lengths = {*range(0, len(data), max(1, len(data) // 40)), *range(len(data) - 9, len(data))}
    for length in lengths:
        (cwd / f"{length}{whole.suffix}").write_bytes(data[:length])
    outcome = run("weights --scan .", expect=4)
    assert [row["file"] for row in outcome.rows if row["rank"] == "known"] == [whole.name]


def test_why_a_file_is_unknown_can_be_read_at_80_columns(files, capsys):
    from rich.console import Console

    import modelscope_cli as ms
    from modelscope_cli.report.shared_tables import scan_sheet
    from modelscope_cli.report.table import render_table

    (files / "page.pt").write_bytes(PAGE)
    (files / "model.gguf").write_bytes(b"GGUF" + bytes(90))
    for name, reason in (
        ("odd.pt", "Normal"),
        ("model.gguf", "GGUF file"),
        ("page.pt", "web page"),
        ("called.pt", "kept('a')"),
        ("evil.pt", "system('exit"),
    ):
        Console(width=80).print(render_table(scan_sheet(ms.scan([name, "good.pt"])), 80))
        assert reason in capsys.readouterr().out
    Console(width=80).print(render_table(scan_sheet(ms.scan(".")), 80))
    told = capsys.readouterr().out
    assert all(column in told for column in ("dangerous", "unknown", "problem"))


def test_a_file_beside_a_script_is_scanned_with_it(run, files):
    (files / "train.py").write_text("x = 1\n")
    assert run("weights --scan good.pt train.py").column("rank") == ["known", "other file"]
    run("weights train.py", expect=2)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_that_was_cut_off_is_damaged(run, cwd, is_zip):
    torch.save(STATE, "whole.pt", _use_new_zipfile_serialization=is_zip)
    content = (cwd / "whole.pt").read_bytes()
    for share in (0.3, 0.6, 0.9):
        (cwd / f"cut{share}.pt").write_bytes(content[: int(share * len(content))])
    outcome = run("weights . --scan", expect=4)
    assert {row["file"]: row["rank"] for row in outcome.rows} == {
        "whole.pt": "known",
        **{f"cut{share}.pt": "damaged" for share in (0.3, 0.6, 0.9)},
    }
    assert "4: 3 damaged, 1 without unknown code" in outcome.err


def test_a_folder_is_scanned_by_the_line_that_the_hint_gives(run, files):
    told = run("weights .", expect=4)
    assert "modelscope weights --scan .   # scans all" in told.err
    run("weights --scan .", expect=1)


def with_another_pickle(old, new):
    """Write a torch archive with a pickle in it that torch.load does not read."""
    import pickle
    import zipfile

    with zipfile.ZipFile(old) as archive, zipfile.ZipFile(new, "w") as longer:
        for name in archive.namelist():
            longer.writestr(name, archive.read(name))
        longer.writestr("more/hidden.pkl", pickle.dumps(Evil()))


def written(kind, name):
    if kind == "another pickle":
        torch.save(STATE, "whole.pt")
        with_another_pickle("whole.pt", name)
    elif kind == "array":
        np.save(name, np.array([Evil()], dtype=object), allow_pickle=True)
    elif kind == "arrays":
        np.savez(name, a=np.array([Evil()], dtype=object))
    else:
        torch.save({"w": torch.ones(2), "x": Evil()}, name, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize(("kind", "name", "loader"), [
    ("zip", "a.pt", "an unrestricted torch.load"),
    ("legacy", "a.pt", "an unrestricted torch.load"),
    ("another pickle", "a.pt", "a pickle that torch.load does not read"),
    ("array", "a.npy", "numpy.load with allow_pickle=True"),
    ("arrays", "a.npz", "numpy.load with allow_pickle=True"),
])  # fmt: skip
def test_what_would_run_the_code_is_said(run, cwd, kind, name, loader):
    written(kind, name)
    document = run(f"weights --scan {name} --json", expect=1).json
    assert document["files"][0]["suspects"][0]["loader"] == loader
    listed = run(f"weights {name} --format table", expect=1)
    assert f"dangerous: {loader} would run " in listed.err
    assert "posix.system" not in listed.out  # it is said once
    assert "dangerous: exit code 1" in listed.out or name.startswith("a.np")  # which is refused
    assert f"{loader} would run " in run(f"weights --scan {name} --format github", expect=1).out


def test_the_worst_loader_of_a_name_is_said(run, cwd):
    torch.save({"w": torch.ones(2), "x": Evil()}, "both.pt")
    with_another_pickle("both.pt", "a.pt")
    (suspect,) = run("weights --scan a.pt --json", expect=1).json["files"][0]["suspects"]
    assert suspect["loader"] == "an unrestricted torch.load"


def test_the_column_of_torch_says_what_was_not_judged(run, cwd):
    import tarfile

    written("array", "a.npy")
    torch.save(STATE, "good.pt")
    with tarfile.open("w.tar.gz", "w:gz") as archive:
        archive.add("good.pt")
    (cwd / "notes.txt").write_text("notes\n")
    told = run("weights --scan a.npy w.tar.gz notes.txt good.pt --format markdown", expect=1).out
    cells = {line.split("|")[1].strip(): line for line in told.splitlines() if line.startswith("| ")}
    for name, text in (("a.npy", "not read"), ("w.tar.gz", "not judged"), ("notes.txt", "no pickle")):
        assert f"| {text} |" in cells[name]


def test_a_broken_link_is_listed_as_by_a_glob(run, files):
    (files / "in").mkdir()
    shutil.copy("good.pt", "in/good.pt")
    (files / "in" / "broken.pt").symlink_to("/nowhere/model.pt")
    for paths in ("in", "'in/*'"):
        rows = {row["file"]: row["rank"] for row in run(f"weights --scan {paths}", expect=4).rows}
        assert rows == {"in/good.pt": "known", "in/broken.pt": "unknown"}


def test_never_fails_only_where_nothing_could_be_scanned(run, files):
    (files / "empty.pt").write_bytes(b"")
    (files / "model.gguf").write_bytes(b"GGUF" + bytes(90))
    run("weights --scan . --fail-on never")
    run("weights --scan empty.pt model.gguf --fail-on never", expect=4)
    run("weights --scan good.pt model.gguf --fail-on dangerous", expect=4)


def test_a_damaged_file_is_told_once(run, files):
    (files / "cut.pt").write_bytes((files / "good.pt").read_bytes()[:-40])
    told = run("weights cut.pt", expect=4).err
    assert told.count("it ends without a zip directory, so a part is missing") == 1
    assert "hint: download or save the file again; this one has" in told
