"""Hundreds of damaged and hostile files: each is read or refused, quickly, in little memory, and none is run."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

N_MUTANTS = 40
MUTANTS = Path(__file__).with_name("mutants.py")


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("mutants")
    state = {f"layer{n}.{kind}": torch.rand(n + 1, 2) for n in range(4) for kind in ("weight", "bias")}
    save_file(state, folder / "whole.safetensors")
    torch.save(
        {"state_dict": state, "optimizer": {"lr": 0.1, "steps": [1, 2]}, "epoch": 3}, folder / "whole.pt"
    )
    (folder / "payload.pkl").write_bytes(pickle.dumps(Payload(folder / "mark"), protocol=4))
    done = subprocess.run(
        [sys.executable, str(MUTANTS), str(folder), str(N_MUTANTS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {**json.loads(done.stdout), "has_run": (folder / "mark").exists()}


def test_every_file_is_read_or_refused(report: dict[str, Any]) -> None:
    assert report["crashes"] == []
    outcomes = report["outcomes"]
    assert outcomes["safetensors read"] + outcomes["safetensors refused"] == N_MUTANTS
    assert outcomes["zip read"] + outcomes["zip refused"] > N_MUTANTS
    assert min(outcomes.values()) > N_MUTANTS // 20  # neither everything nor nothing is taken


def test_none_runs_code_hangs_or_fills_the_memory(report: dict[str, Any]) -> None:
    assert not report["has_run"]
    assert report["slowest"] < 5
    assert report["peak"] < 300 << 20


def test_the_payload_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "mark"), protocol=4))
    assert (tmp_path / "mark").exists()
