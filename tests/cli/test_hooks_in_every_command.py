"""`--hook` where a command runs the model many times: every pass is changed alike, and counted once."""

import pytest
from safetensors.torch import load_file
from tolerance import close

NOISE = "--hook noise=0.5@conv --hook scale=2@block1"


@pytest.fixture
def predicted(run):
    """What the hooked model says, asked in the plainest way."""
    (prediction,) = run(f"predict {{star}} {{healthy}} {NOISE} --json").json["predictions"]
    return prediction["top"][0]


def test_the_hooks_matter(run, predicted):
    (plain,) = run("predict {star} {healthy} --json").json["predictions"]
    assert plain["top"][0]["logit"] != predicted["logit"]


def test_ablate_starts_from_the_hooked_model(run, predicted):
    document = run(f"ablate {{star}} {{healthy}} -l block3.conv2 -l head {NOISE} --no-save --json").json
    baseline = document["baseline"]
    assert baseline["target_index"] == predicted["index"]
    assert baseline["target_logit"] == close(predicted["logit"])
    assert [hook["fired"] for hook in document["hooks"]] == [1, 1]


def test_ablating_what_a_hook_has_zeroed_changes_nothing(run):
    line = "ablate {star} {healthy} -l block2.relu#1 --hook zero@block2.relu#1 --no-save --json"
    (row,) = run(line).json["rows"]
    assert row["target_logit_change"] == row["kl_divergence"] == row["output_l2"] == 0


def test_prune_compares_with_the_hooked_model(run, predicted):
    line = f"prune {{star}} {{healthy}} --sweep 0.001 --amount 0 {NOISE} --json"
    document = run(line).json
    assert document["before"][0]["top"][0]["logit"] == close(predicted["logit"])
    nothing = next(row for row in document["sweep"] if row["amount"] == 0)
    assert nothing["max_logit_change"] == nothing["kl_divergence"] == 0  # the same noise in every pass
    assert [hook["fired"] for hook in document["hooks"]] == [1, 1]


def test_prune_ranks_the_channels_of_the_hooked_model(run, cwd):
    line = "prune {star} {healthy} -l block1.conv1 --by-channel --method activation --amount 0.06 --sweep ''"
    document = run(f"{line} --hook 'zero[2]@block1.conv1' --save-weights cut.safetensors --json").json
    is_cut = ~load_file(cwd / "cut.safetensors")["block1.conv1.weight"].flatten(1).any(1)
    assert is_cut.nonzero().flatten().tolist() == [2]
    assert [hook["fired"] for hook in document["hooks"]] == [1]


def test_attack_fools_the_hooked_model(run, predicted):
    document = run(f"attack {{star}} {{healthy}} --method fgsm {NOISE} --json").json
    best = document["before"]["top"][0]
    assert best["index"] == predicted["index"]
    assert best["logit"] == pytest.approx(predicted["logit"], rel=1e-3)  # from 8-bit pixels
    assert [hook["fired"] for hook in document["hooks"]] == [1, 1]
