"""Several ranks: their sums, and who disagrees."""

import gc
import json
import os
import socket
import zlib

import pytest
import torch
import warm
from tolerance import A_NETWORK, close

from modelscope_cli.errors import UsageError
from modelscope_cli.records.training_facts import RankFacts
from modelscope_cli.watching.disagreement import compare_weights, find_other_ends, find_same_data
from modelscope_cli.watching.log import log_file
from modelscope_cli.watching.rank_log import Described, RankLog, Scalars
from modelscope_cli.watching.ranks import Ranks, check_ranks, wait_for_first, wait_for_others
from modelscope_cli.watching.read_series import read_series
from modelscope_cli.watching.replicas import ReplicaWatch

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


def watched(folder, world=1, script=SCRIPT, arguments=(), options=(), code=0):
    """Watch as many processes as torchrun would start, in the environment it gives them; all end with the code."""
    (folder.parent / "loop.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    watch = ["-m", "modelscope_cli", "watch", "--out", folder, "--json", *options, "loop.py", *arguments]
    ranks = []
    for rank in range(world):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(warm.start(*watch, cwd=folder.parent, env={**os.environ, **place}))
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [code] * world, said
    return read_series(folder), *map("".join, zip(*said, strict=True))


def test_the_warnings_of_a_run_are_printed_by_the_first_rank_alone(tmp_path):
    *_, err = watched(tmp_path / "two", world=2, script="import torch")
    assert err.count("never trained") == 1


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
    assert two.facts.ranks == RankFacts(compared=4, apart=0, sharded=0)
    assert one.facts.ranks is None


def test_a_rank_that_disagrees_is_a_finding_on_every_rank(tmp_path):
    seen, out, _ = watched(
        tmp_path / "odd", world=2, arguments=["--drift"], options=["--fail-on", "error"], code=1
    )
    (finding,) = [one for one in json.loads(out)["findings"] if one["code"] == "MS746"]
    assert (finding["layer"], finding["since_step"], finding["severity"]) == ("0.weight", 3, "error")
    assert "ranks 0 and 1 hold different weights since step 3" in finding["message"]
    assert "change after step 3 without an optimizer" in finding["message"]
    assert seen.events == ()


def test_ranks_that_hold_a_part_of_each_weight_do_not_disagree(tmp_path):
    script = SCRIPT.replace("nn.parallel.DistributedDataParallel(model)", "fully_shard(model)")
    script = script.replace("import os", "from torch.distributed.fsdp import fully_shard\nimport os", 1)
    seen, *_ = watched(tmp_path / "two", world=2, script=script)
    assert seen.events == ()
    assert seen.facts.ranks == RankFacts(compared=0, apart=0, sharded=4)
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
    messages = [event.message for event in find_other_ends([RankLog(end=end) for end in ends])]
    assert messages == [
        "rank 1 ended with exit code 3, after 7 steps",
        "rank 2 ended without finishing its log, after 0 steps",
        "rank 2 took 0 steps, the others 7",
    ]


N = 8
LAYERS = ("0.weight", "0.bias", "1.weight")


def logs(world=2, differs_from=None, is_parallel=True, **changes):
    """Return the logs of ranks that train alike; but that of rank 1 differs from a step on.

    Args:
        changes: of rank 1: `gradient`, factors by name from the step before on, None for none; `moved`, how far its
            steps go; `passes` of DistributedDataParallel to a step; `lost` hooks.
    """
    ranks = []
    for number in range(world):
        own = changes if number == 1 else {}
        since = differs_from if number == 1 and differs_from is not None else N + 1
        log = RankLog(begin={"rank": number}, end={"code": 0, "steps": N, "backward": N})
        averaged, alone = own.get("passes", (1, 0))
        made = {"group": list(range(world)), "made": "a.py:3"}
        for name in LAYERS:
            key = "Net", name
            log.trained[key] = "SGD", (2, 2)
            log.origins[key] = dict(made) if is_parallel else {}
            log.parameters[key], log.weights[key] = {}, {}
            for step in range(N):
                factor = own.get("gradient", {}).get(name, 1.0) if step + 1 >= since else 1.0
                gradient = None if factor is None else factor * (1 + step)
                moved = own.get("moved", 0.01) if step + 1 >= since else 0.01
                is_odd = step >= since
                log.parameters[key][step] = [gradient, 2.0, moved]
                log.weights[key][step] = 100 * step + is_odd, 0.5 + 0.1 * is_odd, 1.0
        for step in range(N):
            log.steps["SGD", step] = Scalars(1.0 + number, [0.1], True)
            log.passes["SGD", step] = averaged * (step + 1), alone * (step + 1), own.get("lost", False)
        ranks.append(log)
    return ranks


@pytest.mark.parametrize(("steps", "changed", "since"), [
    ((range(8), range(8)), None, 0),
    ((range(8), range(2, 12, 2)), None, 2),  # ranks record different steps, as their time allows
    ((range(8), range(8)), 5, None),
    ((range(8), range(6, 12)), None, None),  # too few steps in common
])  # fmt: skip
def test_equal_batches_are_found_at_the_steps_that_all_ranks_recorded(steps, changed, since):
    ranks = logs()
    for number, (rank, recorded) in enumerate(zip(ranks, steps, strict=True)):
        rows = {step: [16, step + (number and step == changed), 1.0] for step in recorded}
        rank.facts.inputs.append(Described(("Net", "input"), {}, rows))
    assert [event.step for event in find_same_data(ranks)] == ([] if since is None else [since])


HALF = dict.fromkeys(LAYERS, 0.5)
CAUSES = {
    "past it": ({"passes": (0, 0)}, "the forward pass of rank 1 bypasses DistributedDataParallel"),
    "no sync": ({"passes": (0, 2)}, "every backward pass of rank 1 runs inside no_sync()"),
    "moved": ({"lost": True}, "moved or cast after DistributedDataParallel"),
    "clipped": ({"gradient": HALF}, "every gradient of rank 1 is 0.5 times that of rank 0"),
    "unused": ({"gradient": {"1.weight": None}}, "gradient of 1.weight is 4 on rank 0 and 0 on rank 1"),
    "one not averaged": ({"gradient": {"0.bias": 3.0}}, "gradient of 0.bias is 4 on rank 0 and 12 on rank 1"),
    "options": ({"moved": 0.02}, "their gradients agree where they were recorded"),
    "written to": ({}, "change after step 3 without an optimizer"),
}


@pytest.mark.parametrize("what", CAUSES)
def test_the_cause_of_a_disagreement_is_named(what):
    changes, words = CAUSES[what]
    found = compare_weights(logs(differs_from=4, **changes)).disagreement
    assert words in found.message
    assert found.cure
    assert (found.name, found.ranks) == ("0.weight", (0, 1))
    assert found.step == 3
    assert found.distance == pytest.approx(0.1)


def test_of_three_ranks_the_odd_one_is_named():
    found = compare_weights(logs(world=3, differs_from=0)).disagreement
    assert found.ranks == (1,)
    assert "rank 1 holds different weights from the rest from the start" in found.message


def test_ranks_that_nothing_shows_to_be_copies_are_not_compared():
    """Each has gradients and weights of its own: an ensemble, or the stages of a pipeline."""
    ranks = logs(is_parallel=False, differs_from=0, gradient=dict.fromkeys(LAYERS, 1.3))
    for rank in ranks:
        for n, rows in enumerate(rank.parameters.values()):
            rows.update({step: [norm ** (n + 1), *rest] for step, (norm, *rest) in rows.items()})
    assert compare_weights(ranks) == RankFacts(compared=0, apart=3, sharded=0)


def test_gradients_that_are_the_same_where_losses_differ_are_averaged():
    found = compare_weights(logs(is_parallel=False, differs_from=0))
    assert found.compared == 3
    assert "broadcast the weights of rank 0" in found.disagreement.cure


@pytest.mark.parametrize("n_differ", [2, 0])
def test_weights_that_stay_the_same_behind_losses_that_differ_are_meant_to(n_differ):
    ranks = logs(is_parallel=False, differs_from=4)
    for rank in ranks:
        for step in range(N):
            is_other = rank is ranks[1] and step < n_differ
            rank.steps["SGD", step] = Scalars(1.0 + is_other, [0.1], True)
            for n, rows in enumerate(rank.parameters.values()):
                rows[step][0] *= 1 + (rank is ranks[1]) * (n + 1) / 10
    found = compare_weights(ranks)
    assert (found.compared, found.apart, found.disagreement is None) == (
        (3, 0, False) if n_differ else (0, 3, True)
    )


def test_a_parameter_that_an_average_by_hand_leaves_out_is_named():
    ranks = logs(is_parallel=False, differs_from=None)
    key = "Net", "0.bias"
    for step in range(N):
        ranks[1].parameters[key][step][0] *= 1.5
        ranks[1].weights[key][step] = 100 * step + (step > 0), 0.5 + 0.1 * (step > 0), 1.0
    found = compare_weights(ranks)
    assert (found.compared, found.disagreement.name) == (3, "0.bias")
    assert "the gradient of 0.bias is" in found.disagreement.message


def test_weights_that_are_the_same_again_are_averaged_from_time_to_time():
    ranks = logs(differs_from=2)
    for key, rows in ranks[1].weights.items():
        rows[6] = ranks[0].weights[key][6]
    found = compare_weights(ranks)
    assert (found.is_averaged_rarely, found.averaged_at, found.disagreement) == (True, 6, None)


def test_a_weight_that_hardly_moves_and_is_the_same_again_is_not_averaged_from_time_to_time():
    ranks = logs(differs_from=1, passes=(0, 0))
    ranks[1].weights["Net", "0.bias"] = {
        step: (value + step % 2, 0.5 + 1e-10 * (step % 2), 1.0)
        for step, (value, *_) in ranks[0].weights["Net", "0.bias"].items()
    }
    found = compare_weights(ranks)
    assert not found.is_averaged_rarely
    assert "the forward pass of rank 1 bypasses DistributedDataParallel" in found.disagreement.message


def test_a_difference_by_rounding_is_not_a_disagreement():
    ranks = logs(differs_from=2)
    for rows in ranks[1].weights.values():
        rows.update({step: (value, 0.5 + 1e-9, 1.0) for step, (value, *_) in rows.items()})
    found = compare_weights(ranks)
    assert found.disagreement is None
    assert found.differs_by == pytest.approx(1e-9, rel=1e-3)


def test_what_differs_behind_the_last_record_is_named():
    ranks = logs()
    for number, rank in enumerate(ranks):
        rank.end["checksums"] = {"SGD": {"0": 1, "1": 2 + number, "2": 3}}
    found = compare_weights(ranks).disagreement
    assert (found.name, found.distance) == ("0.bias", None)


def test_every_group_of_ranks_is_compared_within_itself():
    ranks = logs(world=4)
    for number, rank in enumerate(ranks):
        for key, rows in rank.weights.items():
            rank.origins[key]["group"] = [0, 1] if number < 2 else [2, 3]
            for step in range(N):  # each group has a model of its own, and rank 3 leaves that of rank 2
                is_odd = number == 3 and step > 3
                rows[step] = 100 * step + (number >= 2) + is_odd, 0.5 + 0.1 * is_odd, 1.0
    found = compare_weights(ranks)
    assert (found.compared, found.disagreement.ranks) == (3, (2, 3))


@pytest.fixture
def one_process():
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_what_is_handed_to_distributed_data_parallel_is_meant_to_be_the_same():
    watch, model = ReplicaWatch(), torch.nn.Linear(3, 2)
    with watch.installed(lambda look, *args: look(*args)):
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    assert watch.origin(model.weight)["group"] == [0]
    del wrapped  # before it was used
    gc.collect()
    assert watch.origin(model.bias)
    with watch.installed(lambda look, *args: look(*args)):
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    watch.see_pass(wrapped)
    assert watch.origin(model.weight)
    del wrapped  # once it was: each rank may go on alone
    gc.collect()
    assert watch.origin(model.weight) == {}


@pytest.mark.usefixtures("one_process")
def test_passes_are_counted_for_the_optimizer_whose_parameters_they_average():
    watch, models = ReplicaWatch(), [torch.nn.Linear(3, 2) for _ in range(2)]
    with watch.installed(lambda look, *args: look(*args)):
        wrapped = [torch.nn.parallel.DistributedDataParallel(model) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    watch.see_pass(wrapped[0])  # the other model is called past its own
    for optimizer, n in zip(optimizers, (1, 0), strict=True):
        watch.before_step(optimizer, True)
        assert watch.after_step(optimizer, f"SGD {n}").passes == (n, 0, False)


def test_checksums_are_taken_at_recorded_steps_and_at_the_end():
    watch, parameter = ReplicaWatch(), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], 0.1)
    for is_recorded in (True, False):
        watch.before_step(optimizer, is_recorded)
        report = watch.after_step(optimizer, "SGD")
        assert (report is not None) == is_recorded
    parameter.data += 1
    assert watch.last_checksums() == {"SGD": {0: zlib.crc32(parameter.detach().numpy().tobytes())}}


def test_copies_that_part_between_two_records_are_told_with_both():
    ranks = logs(differs_from=4, gradient=HALF)
    for rank in ranks:
        for rows in rank.weights.values():
            del rows[3], rows[5]
    found = compare_weights(ranks).disagreement
    assert "since one of the steps 2 to 3" in found.message
    assert "every gradient of rank 1 is 0.5 times that of rank 0" in found.message


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
