"""Models that are nested more deeply than Python lets anybody recurse."""

import pytest

from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.keywords import recursion_explained


def test_what_recurses_without_end_is_an_error_of_one_line():
    def again():
        again()

    with pytest.raises(CannotRunError, match="nested too deeply"), recursion_explained():
        again()
