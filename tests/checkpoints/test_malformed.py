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

import modelscope_cli as ms
from modelscope_cli.checkpoints.tensors import read_torch_file
from modelscope_cli.errors import CannotRunError

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


@pytest.mark.parametrize("calls", ["weights stats", "convert", "summary", "predict", "diff", "tensors"])
def test_a_changed_byte_of_a_tensor_is_damage_and_gives_no_numbers(tmp_path: Path, calls: str) -> None:
    """In any record, unless the file was written without checksums; torch loads it without a word."""
    net, path = torch.nn.Conv2d(3, 4, 3), tmp_path / "net.pt"
    (tmp_path / "net.py").write_text("import torch\nnet = lambda: torch.nn.Conv2d(3, 4, 3)\n")
    torch.save(net.state_dict(), tmp_path / "sound.pt")

    def call() -> Any:
        model = f"{tmp_path / 'net.py'}:net"
        return {
            "weights stats": lambda: ms.weights(path, stats=True),
            "convert": lambda: ms.weights(path, convert=tmp_path / "net.safetensors", force=True),
            "summary": lambda: ms.summary(model, checkpoint=path),
            "predict": lambda: ms.predict(
                model, torch.ones(1, 3, 8, 8), checkpoint=path, output_kind="embedding"
            ),
            "diff": lambda: ms.diff(path, tmp_path / "sound.pt"),
            "tensors": lambda: read_torch_file(path),
        }[calls]()

    for has_checksums in (True, False):
        torch.serialization.set_crc32_options(has_checksums)
        try:
            torch.save(net.state_dict(), path)
        finally:
            torch.serialization.set_crc32_options(True)
        call()
        data = bytearray(path.read_bytes())
        data[data.index(net.weight.detach().numpy().tobytes()) + 2] ^= 1
        path.write_bytes(data)
        if has_checksums:
            with pytest.raises(CannotRunError, match=r"damaged or truncated: the bytes of 'net/data/0'"):
                call()
        else:
            call()
