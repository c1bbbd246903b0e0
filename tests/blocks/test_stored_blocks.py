"""Stored blocks: they come back to the last bit, and one that is damaged or missing is computed again."""

import math
import os
import random
from dataclasses import dataclass

import pytest
import torch
from block_runs import TINY

import modelscope_cli as ms
from modelscope_cli.analysis.blocks.folder import Block, BlockFolder
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UnreadableImage


@dataclass(slots=True)
class Inner:
    value: float
    flags: tuple[bool, ...] | None


@dataclass(frozen=True)
class Part:
    name: str | int
    pairs: dict[str, tuple[Inner, int]]
    tensor: torch.Tensor | None = None


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.fixture
def folder(tmp_path):
    folder = BlockFolder(tmp_path)
    folder.start({})
    return folder


@pytest.mark.parametrize("value", [0.1 + 0.2, -0.0, 5e-324, -math.inf, math.nan])
def test_a_block_comes_back_to_the_last_bit(folder, value):
    broken = (UnreadableImage(3, "a.png", "empty"),)
    tensor = torch.tensor([[value, 1.0]], dtype=torch.float64)
    part = Part("ä", {"a": (Inner(value, (True, False)), 2**70)}, tensor)
    folder.write("two words", 0, Block(1, broken, part))
    found = folder.read("two words", 0, Part)
    assert (found.n_images, found.broken) == (1, broken)
    assert repr(found.result) == repr(part)
    assert found.result.tensor.numpy().tobytes() == tensor.numpy().tobytes()


def test_nothing_in_a_block_is_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder.write("phase", 0, Block(1, (), RunsCode()))
    with pytest.raises(CannotRunError, match="cannot be read"):
        folder.read("phase", 0, Part)
    assert not (tmp_path / "made").exists()


def test_any_damage_is_noticed(folder):
    folder.write("phase", 0, Block(1, (), Part("a", {}, torch.arange(9.0))))
    (file,) = (folder.path / "blocks").iterdir()
    good = file.read_bytes()
    assert folder.remove_damaged() == []
    for at in range(0, len(good), 5):
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            file.write_bytes(damaged)
            assert folder.remove_damaged() == [file.name]


def test_blocks_that_are_missing_or_damaged_are_computed_again(finished_copy, capsys):
    def result(**more):
        record = ms.stats(TINY[1], "images", checkpoint=TINY[3], size=32, batch=4, out="kept", **more)
        return record.layers, record.inputs

    before = result(force=True)
    blocks = sorted((finished_copy / "kept/blocks").iterdir())
    gone, cut, kept = random.Random(0).sample(blocks, 3)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-9])
    content, made = kept.read_bytes(), kept.stat().st_ino
    assert result(resume=True) == before
    assert sorted((finished_copy / "kept/blocks").iterdir()) == blocks
    assert (kept.read_bytes(), kept.stat().st_ino) == (content, made)
