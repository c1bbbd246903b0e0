"""Settings for the whole suite."""

import os

import pytest

# Several workers that each use every core spend their time waiting for one another. Before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files of tests/golden.")
