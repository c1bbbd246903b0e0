"""A person in an empty folder, with what `modelscope demo` puts there, and nothing else."""

from pathlib import Path

import pytest
from person import Person

import modelscope_cli as ms

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ms.demo(tmp_path_factory.mktemp("shipped") / "demo")[0].parent


@pytest.fixture
def person(
    tmp_path: Path,
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    undrawn: None,
) -> Person:
    """Somebody offline, in a folder of their own, on a wide terminal."""
    for name, value in (("MSCOPE_OFFLINE", "1"), ("TORCH_HOME", str(tmp_path / "torch")), ("COLUMNS", "160")):
        monkeypatch.setenv(name, value)
    for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "demo").symlink_to(demo)
    monkeypatch.chdir(folder)
    return Person(folder, capsys, monkeypatch)
