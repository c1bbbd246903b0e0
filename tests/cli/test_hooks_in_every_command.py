"""`--hook` where a command runs the model many times: every pass is changed alike, and counted once."""

import pytest
from tolerance import close

NOISE = "--hook noise=0.5@conv --hook scale=2@block1"


@pytest.fixture
def predicted(run):
    """What the hooked model says, asked in the plainest way."""
    (prediction,) = run(f"predict {{star}} {{healthy}} {NOISE} --json").json["predictions"]
    return prediction["top"][0]


def test_ablate_starts_from_the_hooked_model(run, predicted):
    document = run(f"ablate {{star}} {{healthy}} -l block3.conv2 -l head {NOISE} --no-save --json").json
    baseline = document["baseline"]
    assert baseline["target_index"] == predicted["index"]
    assert baseline["target_logit"] == close(predicted["logit"])
    assert [hook["fired"] for hook in document["hooks"]] == [1, 1]
