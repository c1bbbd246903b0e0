"""Where the samples are."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples() -> Path:
    return Path(__file__).parents[2] / "samples"
