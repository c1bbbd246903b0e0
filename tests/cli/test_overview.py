"""The overview fits a screen of 80 columns and 32 lines, and has every command on one of them."""

import pytest

from modelscope_cli.shell.overview import GROUPS


@pytest.mark.parametrize("line", ["", "--help", "help"])
def test_the_overview_fits_one_screen(run, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(line, expect=None).out.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    for names in GROUPS.values():
        for name, about in names.items():
            assert f"  {name:<13}{about}" in lines
