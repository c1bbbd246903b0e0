"""Deprecations inside libraries are left out of stderr; those in the user's code are not."""

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import types
import warnings
from torch import nn

library = types.ModuleType("transformers.utils.made")
library.warnings = warnings
exec("warnings.warn('_register_pytree_node is deprecated', FutureWarning)", vars(library))
exec("warnings.warn('torch.old is deprecated', UserWarning)", vars(library))
exec("warnings.warn('of values', UserWarning)", vars(library))
warnings.warn("this call of yours is deprecated", FutureWarning)

def net():
    return nn.Conv2d(3, 4, 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "has_libraries"), [((), False), (("-W", "default"), True)])
def test_only_deprecations_of_libraries_are_left_out(
    flags: tuple, has_libraries: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    line = [
        sys.executable,
        *flags,
        "-m",
        "modelscope_cli",
        "summary",
        "mine.py:net",
        "--input-shape",
        "1,3,8,8",
    ]
    said = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "this call of yours is deprecated" in said
    assert "of values" in said
    for text in ("_register_pytree_node", "torch.old"):
        assert (text in said) == has_libraries
