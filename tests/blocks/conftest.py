"""A finished run, made once and copied for each test."""

import shutil

import pytest
from block_runs import TINY, draw_images

from modelscope_cli.shell.app import run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A folder with ten images, and the finished blocks of them in `kept`."""
    folder = tmp_path_factory.mktemp("finished")
    draw_images(folder / "images", 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["stats", "images", *TINY, "--size", "32", "--batch", "4", "--out", "kept", "-q"]) == 0
    return folder


@pytest.fixture
def finished_copy(finished, tmp_path, monkeypatch):
    """A copy of it, which is the working folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
