"""Several ranks: their sums, and who disagrees."""

import os
import socket

import pytest
import warm
from tolerance import A_NETWORK, close

from modelscope_cli.errors import UsageError
from modelscope_cli.watching.disagreement import find_disagreements
from modelscope_cli.watching.log import log_file
from modelscope_cli.watching.ranks import Ranks, check_ranks, wait_for_first, wait_for_others
from modelscope_cli.watching.read_series import RankLog, read_series

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch import nn
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
pictures, labels = torch.randn(6, 16, 4), torch.randint(3, (6, 16))
if world > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    scores = model(pictures[i].chunk(world)[rank])
    loss = nn.functional.cross_entropy(scores, labels[i].chunk(world)[rank])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 1 and i == 3 and "--drift" in sys.argv:
        with torch.no_grad():
            model.module[0].weight.add_(1)
if world > 1:
    dist.barrier()  # gloo aborts a process now and then that leaves while the other is still talking
    dist.destroy_process_group()
"""


def watched(folder, world=1, script=SCRIPT, arguments=()):
    """Watch as many processes as torchrun would start, in the environment it gives them."""
    (folder.parent / "loop.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    watch = ["-m", "modelscope_cli", "watch", "--out", folder, "--json", "loop.py", *arguments]
    ranks = []
    for rank in range(world):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(warm.start(*watch, cwd=folder.parent, env={**os.environ, **place}))
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, said
    return read_series(folder), *map("".join, zip(*said, strict=True))


def test_two_ranks_give_what_one_process_gives(tmp_path):
    one, *_ = watched(tmp_path / "one")
    two, out, _ = watched(tmp_path / "two", world=2)
    assert out.count('"schema"') == 1
    assert len(two.ranks) == 2
    assert two.events == ()
    assert [row.name for row in two.layers] == [row.name for row in one.layers] == ["0", "1", "2"]
    for a, b in zip(one.layers, two.layers, strict=True):
        assert a.series.histogram.counts == b.series.histogram.counts
        for key in ("mean", "std", "zero_fraction", "near_zero_fraction", "grad_norm"):
            assert getattr(a.series, key) == close(getattr(b.series, key), A_NETWORK, scale=0.01)
    for a, b in zip(one.parameters, two.parameters, strict=True):
        assert a.series.grad_norm == close(b.series.grad_norm, A_NETWORK)
        assert a.series.update_ratio == close(b.series.update_ratio, 10 * A_NETWORK)
    assert one.loss[0].value == close(two.loss[0].value)


SLOW_THREADS = """
def nap(sleep=__import__("time").sleep):
    sleep(0.5)

sys.modules["napping"] = type("Napping", (type(sys),), {"__del__": lambda module: nap()})("napping")
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm") as name:
        if name.read().startswith("pt_gloo"):
            os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
for _ in range(3):
    parts = [torch.empty(1), torch.empty(1)]
    dist.all_gather(parts, torch.ones(1))
    del parts
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="no way here to hold a thread back")
def test_no_rank_aborts_where_the_threads_of_gloo_are_behind(tmp_path):
    """Without its own end, a rank here ends with SIGABRT a few times in ten."""
    script = SCRIPT.partition("if world > 1:\n    dist.barrier()")[0] + SLOW_THREADS
    watched(tmp_path / "behind", world=2, script=script)


def test_a_rank_that_disagrees_is_named(tmp_path):
    seen, _, err = watched(tmp_path / "odd", world=2, arguments=["--drift"])
    (event,) = seen.events
    assert (event.kind, event.step) == ("rank", 4)
    assert "rank 1 disagrees" in event.message
    assert "rank 1 disagrees" in err


def test_ranks_that_hold_a_part_of_each_weight_do_not_disagree(tmp_path):
    script = SCRIPT.replace("nn.parallel.DistributedDataParallel(model)", "fully_shard(model)")
    script = script.replace("import os", "from torch.distributed.fsdp import fully_shard\nimport os", 1)
    seen, *_ = watched(tmp_path / "two", world=2, script=script)
    assert seen.events == ()
    assert [(row.model, row.name, row.type) for row in seen.layers] == [
        ("Sequential", "0", "Linear"),
        ("Sequential", "1", "ReLU"),
        ("Sequential", "2", "Linear"),
    ]
    assert [row.name for row in seen.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for row in seen.parameters:
        assert row.series.step == tuple(range(6))
        assert all(row.series.grad_norm)
        assert all(row.series.update_ratio)


def test_a_rank_that_ends_otherwise_is_named():
    ends = {"code": 1, "steps": 7}, {"code": 3, "steps": 7}, None
    messages = [event.message for event in find_disagreements([RankLog(end=end) for end in ends])]
    assert messages == [
        "rank 1 ended with exit code 3, after 7 steps",
        "rank 2 ended without saying how, after 0 steps",
        "rank 2 took 0 steps, the others 7",
    ]


def test_waiting_for_a_rank_has_an_end(tmp_path):
    (tmp_path / "log.1.jsonl").write_text('{"begin":{}}\n{"end":{"steps":1}}\n')
    assert wait_for_others(tmp_path, Ranks(0, 3), seconds=0.1) == [2]


def test_another_rank_writes_nothing_before_the_first_has_its_say(tmp_path):
    log_file(tmp_path, 1).write_text("of an earlier run")
    with pytest.raises(UsageError, match="not empty"):
        wait_for_first(tmp_path, Ranks(1, 2), is_forced=False)
    log_file(tmp_path).touch()
    wait_for_first(tmp_path, Ranks(1, 2), is_forced=True)


def test_several_machines_need_a_folder(monkeypatch):
    monkeypatch.setitem(os.environ, "GROUP_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="share"):
        check_ranks(Ranks(1, 4), has_folder=False)
