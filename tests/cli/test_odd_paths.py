"""Pipes are refused at once, never waited for; names that no file system has are exit 2 or 4."""

import json
import os
import signal
import subprocess
import sys

import pytest
from PIL import Image

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
READERS = [
    *("weights pipe.pt", "weights pipe.safetensors", "summary pipe.pt", "predict pipe.png {tiny}"),
    *("stats pipe.npy {tiny}", "diff {samples}/sick.safetensors pipe.safetensors", "watch pipe.py"),
    *("predict {star} {tiny} --labels pipe.txt", "check {TINY} --select MS1 --baseline pipe.json"),
    *("summary pipe.py:Net", "train {TINY} pipe.png", "watch --report pipe.json"),
]
WRITERS = [
    *("rules -o pipe.json", "weights {samples}/sick.safetensors --convert pipe.safetensors"),
    "stats {star} {tiny} -l head --plot pipe.png",
    *("featuremaps {star} {tiny} --save-tensors pipe.safetensors", "grads {star} {tiny} --out pipe.json"),
    "stats {star} {tiny} --hook save=pipe.safetensors@head",
]


@pytest.fixture
def pipes(cwd):
    for suffix in ("pt", "safetensors", "png", "npy", "txt", "json", "py"):
        os.mkfifo(cwd / f"pipe.{suffix}")


@pytest.mark.parametrize("line", [*READERS, *WRITERS])
def test_a_named_pipe_is_refused_at_once(run, pipes, line):
    def waited(number, frame):
        raise AssertionError("it waits")

    signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    try:
        outcome = run(line, expect=None)
    finally:
        signal.alarm(0)
    assert outcome.code in (2, 4), outcome.err
    assert "pipe." in outcome.err


@pytest.mark.parametrize("line", [
    *("weights {long}", "summary {long}", "summary {long}.py:Net", "watch {long}.py", "train {TINY} {long}"),
    *("predict {long}.png {tiny}", "stats {long}.npy {tiny}", "predict {star} {tiny} --labels {long}"),
    *("rules -o {long}.csv", "grads {star} {tiny} --out {long}", "check {TINY} --baseline {long}"),
])  # fmt: skip
@pytest.mark.parametrize("long", ["x/" * 2500 + "x", "x" * 300])
def test_a_name_longer_than_any(run, cwd, line, long):
    outcome = run(line, expect=None, long=long)
    assert outcome.code in (2, 4), outcome.err[-500:]
    assert list(cwd.iterdir()) == []


def test_what_the_shell_has_opened_is_not_a_pipe_to_wait_for(cwd):
    command = f"'{sys.executable}' -m modelscope_cli models resnet18 -q -o /dev/stdout --format csv | cat"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("name,")
    assert done.stderr == ""


@pytest.mark.parametrize("shard", ["x" * 5000 + ".safetensors", "x" * 300])
def test_a_shard_with_such_a_name(run, cwd, shard):
    (cwd / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    run("weights model.safetensors.index.json", expect=4)


@pytest.mark.parametrize("suffix", ["gif", "tif"])
def test_of_several_pictures_in_a_file_the_first_is_taken_and_said(run, cwd, suffix):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "lime")]
    frames[0].save(cwd / f"many.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    frames[0].save(cwd / "one.png")
    many = run(f"stats many.{suffix} {{tiny}} -l head")
    assert f"'many.{suffix}' contains 3 images; the first is used\n" in many.err
    one = run("stats one.png {tiny} -l head")
    assert "pictures; the first" not in one.err
    assert [float(mean) for mean in many.column("mean")] == pytest.approx(
        [float(mean) for mean in one.column("mean")]
    )
