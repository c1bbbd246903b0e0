"""Ranks that a script starts by itself, which nobody watches."""

import os
import socket

import pytest
import torch
import warm

from modelscope_cli.watching.read_series import read_series
from modelscope_cli.watching.watcher import unwatched_ranks

SCRIPT = """
import os, subprocess, sys, torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
if "RANK" not in os.environ:  # as Lightning's own launcher does it
    os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"})
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_the_script_starts_is_named_once_with_the_command_that_watches_it(tmp_path):
    (tmp_path / "loop.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    watch = ["-m", "modelscope_cli", "watch", "--out", "runs", "--json", "loop.py", port]
    process = warm.start(*watch, cwd=tmp_path, env=env)
    _, said = process.communicate()
    assert process.returncode == 0, said
    series = read_series(tmp_path / "runs")
    (event,) = series.events
    assert event.message == (
        "ranks that the script started are not watched (1 of 2); to watch all of them: torchrun "
        f"--nproc-per-node 2 -m modelscope_cli watch loop.py {port}"
    )
    assert said.count(event.message) == 1
    assert [layer.name for layer in series.layers] == [""]


@pytest.mark.parametrize(("world", "n_watched", "words"), [
    (1, 1, None),
    (4, 4, None),
    (4, 1, "ranks that the script started are not watched (3 of 4)"),
    (8, 2, "ranks that the script started are not watched (6 of 8)"),
])  # fmt: skip
def test_what_is_said_of_ranks(monkeypatch, world, n_watched, words):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
    said = unwatched_ranks("train.py", n_watched)
    assert (said or "").partition(";")[0] == (words or "")
