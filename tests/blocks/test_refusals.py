"""What --resume goes on with, and what it refuses."""

import shutil

import pytest
from block_runs import TINY

from modelscope_cli.shell.app import run

STATS = ["stats", "images", *TINY, "--size", "32"]


pytestmark = pytest.mark.usefixtures("finished_copy")


def refused(capsys, *argv):
    assert run(list(argv)) == 2
    return capsys.readouterr().err


def again(*more):
    batch = () if "--batch" in more else ("--batch", "4")
    return [*STATS, *batch, "--out", "kept", *more]


def test_another_list_is_refused(finished_copy, capsys):
    shutil.copy(finished_copy / "images/000.png", finished_copy / "images/more.png")
    assert "the list of files (10 there, 11 here" in refused(capsys, *again("--resume"))


def test_another_file_of_the_same_name_is_refused(finished_copy, capsys):
    shutil.copy(finished_copy / "images/000.png", finished_copy / "images/001.png")
    assert "the list of files" in refused(capsys, *again("--resume"))


def test_another_model_is_refused(capsys):
    argv = [value.replace("tiny_resnet.safetensors", "sick.safetensors") for value in again("--resume")]
    assert "differs in the model\n" in refused(capsys, *argv)


@pytest.mark.parametrize(("option", "said"), [
    (("--layer", "conv"), 'layer ([] there, ["conv"] here)'),
    (("--batch", "5"), "batch (4 there, 5 here)"),
    (("--columns", "mean"), "figures"),
    (("--mean", "0.5,0.5,0.5"), "preprocessing"),
])  # fmt: skip
def test_another_option_is_refused_by_name(capsys, option, said):
    assert said in refused(capsys, *again("--resume", *option))


def test_options_that_change_no_number_are_taken(capsys):
    assert run(again("--resume", "--format", "csv", "-q")) == 0
    assert run(again("--resume", "--columns", "name,mean,zero,near_zero,dead,histogram")) == 0


def test_a_folder_is_gone_on_with_only_where_that_is_said(finished_copy, capsys):
    assert "contains the blocks of another run" in refused(capsys, *again())
    before = (finished_copy / "kept/run.json").read_bytes()
    assert run(again("--force", "--layer", "conv")) == 0
    assert (finished_copy / "kept/run.json").read_bytes() != before


def test_there_has_to_be_something_to_go_on_with(finished_copy, capsys):
    assert "needs the folder" in refused(capsys, *STATS, "--resume")
    assert "contains no run" in refused(capsys, *STATS, "--resume", "--out", "nowhere")
    assert not (finished_copy / "nowhere").exists()


def test_a_damaged_block_is_computed_again(finished_copy, capsys):
    (finished_copy / "kept/blocks/activations-000001.block").write_text("{")
    assert run(again("--resume")) == 0
    assert "block activations-000001.block is damaged, and is computed again" in capsys.readouterr().err


def test_blocks_of_another_version_are_refused(finished_copy, capsys):
    key = finished_copy / "kept/run.json"
    key.write_text(key.read_text().replace('"version": "', '"version": "0.'))
    assert "differs in the version of modelscope ('0." in refused(capsys, *again("--resume"))


def test_what_one_process_has_to_make_in_one_go_has_no_blocks_to_go_on_with(capsys):
    assert "so there are no blocks to continue with" in refused(
        capsys, *again("--resume", "--hook", "scale=1@conv")
    )
