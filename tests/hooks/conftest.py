"""A model that leaves marks on itself."""

from collections.abc import Iterator

import pytest
import torch
from session_models import Net


@pytest.fixture
def net() -> Iterator[Net]:
    torch.manual_seed(0)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    yield Net()
    torch.backends.mha.set_fastpath_enabled(fastpath)
