"""Small files and a torch cache of the test's own."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modelscope_cli.models.zoo import choose_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty torch cache; no test reads or fills the one of this machine."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    monkeypatch.delenv("MSCOPE_OFFLINE", raising=False)
    folder = tmp_path / "torch_home" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes `state` the file of a model's weights, outside the cache."""

    def put(name: str, state: Any, where: str = "http://127.0.0.1:9", weights_name: str = "DEFAULT") -> Path:
        file = tmp_path / "published.pth"
        torch.save(state, file)
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        weights = choose_weights(name, weights_name)
        file_name = re.sub(r"-[a-f0-9]{8}\.", f"-{sha256[:8]}.", weights.url.rpartition("/")[2])
        url = f"{where}/{file_name}"
        monkeypatch.setattr(weights, "_value_", dataclasses.replace(weights.value, url=url))
        return file.rename(tmp_path / file_name)

    return put
