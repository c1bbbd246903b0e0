"""The fixtures of the tests of public functions."""

from pathlib import Path

import pytest
from function_and_command import Both


@pytest.fixture
def both(capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(capsys)


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in; no network, and no torch cache of this machine."""
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
