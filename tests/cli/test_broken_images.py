"""Every command goes through images of which some are broken, counts them, and stops at them under --strict."""

import json

import numpy as np
import pytest
from PIL import Image

COMMANDS = {
    "stats": "--columns name,mean",
    "stats in train mode": "--mode train -l conv --out correlated",
    "predict": "--top 1",
    "predict, judged": "--truth folders --labels {labels}",
    "predict, varied": "--doctor",
    "explain": "--method hirescam --receipt none --out maps",
    "check": "--select MS1,MS2,MS6",
    "grads": "--no-save",
    "ablate": "-l block3.conv2 --no-save",
    "diff": "--b-weights none --b-seed 1",
}
BROKEN = {4: b"", 5: b"", 6: b"", 7: b"", 11: b"words", 17: None}


@pytest.fixture
def folder(tmp_path):
    """Twenty images, of which six are broken: in batches of 4 one is without any."""
    (tmp_path / "photos").mkdir()
    for n in range(20):
        pixels = np.random.default_rng(n).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        path = tmp_path / "photos" / f"{n:02}.jpg"
        Image.fromarray(pixels).save(path)
        if n in BROKEN:
            path.write_bytes(path.read_bytes()[:-400] if BROKEN[n] is None else BROKEN[n])
    return tmp_path / "photos"


@pytest.mark.parametrize("command", COMMANDS)
def test_broken_images_are_counted_and_end_the_run_only_under_strict(run, folder, cwd, command):
    (cwd / "labels.txt").write_text("photos\n" + "\n".join(map(str, range(9))))
    name = command.partition(" ")[0].strip(",")
    options = COMMANDS[command].replace("{labels}", "labels.txt")
    model = "{TINY}" if name in ("check", "diff") else "-m {TINY}"
    line = f"{name} {model} {folder} -w none --size 32 --batch 4 --json {options}"
    outcome = run(line, expect=None)
    assert outcome.code in (0, 1), outcome.err
    document = json.loads(outcome.out)
    assert document.get("images", 14) == 14
    found = {kind["kind"]: (kind["count"], len(kind["names"])) for kind in document["input"]["broken"]}
    assert found == {"empty": (4, 4), "truncated": (1, 1), "not an image": (1, 1)}
    assert "warning: 6 of 20 images could not be read: 4 empty (" in outcome.err
    assert [one["code"] for one in document["warnings"]].count("broken-images") == 1
    if name == "predict" and "predictions" in document and command == "predict":
        shown = [row["image"] for row in document["predictions"]]
        assert shown == [f"{folder}/{n:02}.jpg" for n in range(20) if n not in BROKEN]
    force = "--force" if "--out" in options else ""
    strict = run(f"{line} --strict {force}", expect=4)
    first = "06" if command == "check" else "04"  # whose batches mix the files
    assert f"'{folder}/{first}.jpg' is empty" in strict.err


def test_the_truth_of_an_image_stays_its_own(run, folder, cwd):
    """Classes that alternate: had those behind a broken image moved up, all would be wrong."""
    predicted = json.loads(run(f"predict {folder} -m {{TINY}} -w none --size 32 --json --top 1").out)
    names = {row["image"]: row["top"][0]["index"] for row in predicted["predictions"]}
    lines = [f"{folder}/{n:02}.jpg,{names.get(f'{folder}/{n:02}.jpg', 0)}" for n in range(20)]
    (cwd / "truth.csv").write_text("\n".join(lines))
    judged = json.loads(
        run(f"predict {folder} -m {{TINY}} -w none --size 32 --json --truth truth.csv --batch 3").out
    )
    assert judged["truth"]["images"] == 14
    assert judged["truth"]["accuracy"]["value"] == 1.0
