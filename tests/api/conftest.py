"""The fixtures of the tests of public functions."""

from pathlib import Path

import pytest
from function_and_command import Both


@pytest.fixture
def both(capsys: pytest.CaptureFixture[str]) -> Both:
    return Both(capsys)


@pytest.fixture(autouse=True)
def cwd(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in; no network, and no torch cache of this machine."""
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    folder = tmp_path_factory.mktemp("cwd")
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch_home"))
    monkeypatch.chdir(folder)
    return folder
