"""`verify` finds what was changed, and nothing where nothing was."""

import json
import shutil

import pytest
from block_runs import TINY

import modelscope_cli as ms
from modelscope_cli.analysis.blocks.blocks import gap_between
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell.app import run


@pytest.fixture
def kept(finished_copy):
    """The finished blocks of ten images."""
    return finished_copy / "kept"


def changed(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_a_result_is_what_it_says(kept, capsys):
    assert run(["verify", "kept", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(block["phase"], block["block"]) for block in found["blocks"]] == [
        (phase, block) for phase in ("activations", "second pass") for block in range(3)
    ]
    assert all(block["is_equal"] and block["is_same_machine"] for block in found["blocks"])
    assert found["certificate"] == json.loads((kept / "report.json").read_text())["certificate"]


def test_the_report_names_the_folder_too_and_the_sample_is_as_large_as_asked_for(kept):
    record = ms.verify(kept / "report.json", sample=2, seed=1)
    assert record.passed
    assert len(record.blocks) == 4


def test_a_changed_figure_of_a_block_is_found(kept, capsys):
    changed(kept / "blocks/activations-000001.json", '"low":-', '"low":-1')
    assert run(["verify", "kept", "--format", "tsv", "--columns", "block,passed"]) == 1
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row for row in rows[:3] if row[1] == "false"] == [["1", "false"]]


def test_a_changed_figure_of_a_block_outside_of_the_sample_shows_in_the_report(kept):
    changed(kept / "blocks/activations-000002.json", '"low":-', '"low":-1')
    record = ms.verify(kept, sample=1, seed=0)
    assert all(block.passed for block in record.blocks)
    assert not record.passed
    assert any("'certificate'" in one for one in record.differences)


def test_a_changed_report_is_found(kept):
    changed(kept / "report.json", '"near_zero": 0.05', '"near_zero": 0.06')
    record = ms.verify(kept)
    assert record.differences == (
        f"'{kept}/report.json' has a 'near_zero' that does not match the totals of the blocks",
        f"'{kept}/report.json' was changed after it was written",
    )
    assert not record.passed


@pytest.mark.parametrize("name", ["report.json", "report.html", "SHA256SUMS"])
def test_a_file_that_is_missing_is_found(kept, name):
    (kept / name).unlink()
    (difference,) = ms.verify(kept, sample=1).differences
    assert difference.startswith(f"'{kept}/{name}' is missing")


@pytest.mark.parametrize(("name", "old", "new"), [
    ("report.json", '"stats",', '"predict",'),  # argv
    ("report.json", '"version": "0', '"version": "9'),
    ("report.json", '"elapsed_ms": ', '"elapsed_ms": 1'),
    ("report.json", '"warnings": [', '"warnings": [{"code": "x", "message": "y"}'),
    ("report.html", "stats", "State"),
    ("SHA256SUMS", "report.html", "report.htm"),
])  # fmt: skip
def test_a_changed_header_or_page_is_found(kept, name, old, new):
    changed(kept / name, old, new)
    record = ms.verify(kept, sample=1)
    assert not record.passed
    assert any("was changed after it was written" in one for one in record.differences)


def test_another_model_is_found(kept):
    changed(kept / "run.json", "tiny_resnet.safetensors", "sick.safetensors")
    record = ms.verify(kept, sample=1)
    assert record.differences[0] == "the runs differ in the model"
    assert not record.blocks[0].passed


def test_other_images_cannot_be_computed_again(kept):
    shutil.copy("images/000.png", "images/001.png")
    with pytest.raises(CannotRunError, match="the list of files"):
        ms.verify(kept)


def test_what_is_not_finished_is_not_verified(kept):
    (kept / "blocks/activations-000000.json").unlink()
    with pytest.raises(CannotRunError, match="1 of 3 blocks are missing"):
        ms.verify(kept)


def test_a_folder_without_blocks_is_an_error(tmp_path):
    with pytest.raises(CannotRunError, match="contains no blocks"):
        ms.verify(tmp_path)


def test_blocks_of_another_machine_have_to_be_near(kept):
    for file in (kept / "blocks").iterdir():
        changed(file, '"chip":"', '"chip":"another ')
    assert ms.verify(kept).blocks[0].passed
    changed(kept / "blocks/activations-000001.json", '"n":', '"n":1')
    record = ms.verify(kept)
    assert [block.is_same_machine for block in record.blocks] == [False] * 6
    assert [block.passed for block in record.blocks[:3]] == [True, False, True]


def test_a_module_that_was_handed_over_is_asked_for(kept, tmp_path):
    model = ms.load(TINY[1], checkpoint=TINY[3]).module
    ms.stats(model, str(tmp_path / "images"), size=32, batch=4, out=tmp_path / "own")
    with pytest.raises(UsageError, match="passed from Python"):
        ms.verify(tmp_path / "own")
    assert ms.verify(tmp_path / "own", model=model).passed
    model.head.bias.data += 1
    assert not ms.verify(tmp_path / "own", model=model).passed


def test_the_gap_is_of_the_largest_number_beside():
    assert gap_between({"a": [1.0, 2.0], "b": "x"}, {"a": [1.0, 2.0], "b": "x"}) == 0
    assert gap_between({"mean": 1e-9, "high": 10.0}, {"mean": 2e-9, "high": 10.0}) == pytest.approx(1e-10)
    assert gap_between([1, 2], [1, 2, 3]) is None
    assert gap_between({"a": "0101"}, {"a": "0111"}) is None
    assert gap_between({"seconds": 1.0}, {"seconds": 2.0}) == 0
    assert gap_between([-0.0], [0.0]) == 0
