"""The same bits for any number of processes, and after a break; every image once; errors said once."""

import os
import signal
import subprocess
import sys
import time

import pytest
import warm
from block_runs import BROKEN, N_IMAGES, TINY, content, document, draw_images, run

STATS = ("stats", "images", *TINY, "--size", "32", "--json")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which there is `images`, a folder of all of them; some cannot be read."""
    place = tmp_path_factory.mktemp("blocks")
    folder = draw_images(place / "images", N_IMAGES)
    for number in BROKEN:
        (folder / f"{number:03d}.png").write_bytes(b"")
    return place


@pytest.fixture(scope="module")
def alone(place):
    """One process that keeps its blocks."""
    out, _ = run(None, *STATS, "--out", "alone", cwd=place)
    return document(out), content(place / "alone")


def test_one_process_without_a_folder_finds_the_same(place, alone):
    out, _ = run(None, *STATS, cwd=place, OMP_NUM_THREADS="1")
    assert document(out) == alone[0]


def test_three_processes_give_the_same_bits(place, alone):
    out, _ = run(3, *STATS, "--out", "by-three", cwd=place)
    assert document(out) == alone[0]
    assert content(place / "by-three") == alone[1]


def test_several_processes_need_no_folder(place, alone):
    out, _ = run(2, *STATS, cwd=place, TMPDIR=str(place))
    assert document(out) == alone[0]
    assert not list(place.glob("modelscope-*"))


def test_every_image_is_counted_once(alone):
    assert [name for name in alone[1] if name.startswith("activations")] == [
        f"activations-{number:06d}.block" for number in range(13)
    ]
    assert alone[0]["images"] == N_IMAGES - 9
    (kind,) = alone[0]["input"]["broken"]
    names = [f"images/{number:03d}.png" for number in BROKEN]
    assert (kind["kind"], kind["count"], kind["names"]) == ("empty", 9, names)


def test_processes_without_a_block_are_allowed(place):
    argv = ("stats", "images", *TINY, "--size", "32", "--json", "--batch", "103")
    one, _ = run(1, *argv, cwd=place)
    three, _ = run(3, *argv, cwd=place)
    assert document(three) == document(one)


def test_a_killed_run_goes_on_with_another_number_of_processes(place, alone):
    folder = place / "killed"
    process = warm.start("-m", "modelscope_cli", *STATS, "--out", "killed", cwd=place)
    while len(list((folder / "blocks").glob("*.block")) if folder.exists() else []) < 5:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (folder / "blocks" / "activations-000002.block").unlink(
        missing_ok=True
    )  # if it was too quick to be killed
    out, _ = run(2, *STATS, "--out", "killed", "--resume", cwd=place)
    assert document(out) == alone[0]
    assert content(folder) == alone[1]


SLOW_TO_WRITE = """
import pathlib, os, sys, time
from modelscope_cli import __main__
from modelscope_cli.analysis.blocks.folder import BlockFolder

write = BlockFolder.write

def write_slowly(*arguments):
    pathlib.Path("begun-" + os.environ["RANK"]).touch()
    time.sleep(1)  # with a block that is claimed and not there yet
    write(*arguments)

BlockFolder.write = write_slowly
sys.argv[0] = "modelscope"
__main__.main()
"""


def test_processes_whose_torchrun_was_killed_end(place, alone):
    """With exit code 4, a sentence, and the finished blocks."""
    keep = "from torch.distributed import TCPStore; import sys; s = TCPStore('127.0.0.1', 0, is_master=True, "
    keep += "wait_for_workers=False); print(s.port, flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    store = subprocess.Popen([sys.executable, "-c", keep], stdin=pipe, stdout=pipe, text=True)
    env = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    env["MASTER_PORT"] = store.stdout.readline().strip()
    argv = ("-c", SLOW_TO_WRITE, *STATS, "--out", "orphaned")
    ranks = [warm.start(*argv, cwd=place, env=env | {"RANK": f"{n}", "LOCAL_RANK": f"{n}"}) for n in (0, 1)]
    try:
        while not all((place / f"begun-{n}").exists() for n in (0, 1)):
            assert all(process.poll() is None for process in ranks)
            time.sleep(0.001)
    finally:
        store.kill()
        store.communicate()
    said = [process.communicate(timeout=100)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [4, 4], said
    assert "error: torchrun's store is gone" in said[0]
    assert len(content(place / "orphaned")) < 2 * 13
    out, _ = run(None, *STATS, "--out", "orphaned", "--resume", cwd=place, OMP_NUM_THREADS="1")
    assert document(out) == alone[0]
    assert content(place / "orphaned") == alone[1]


@pytest.mark.slow
def test_torchrun_starts_them_and_a_killed_rank_ends_all(place, alone):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_it = ["-m", "modelscope_cli", *STATS, "--out", "torchrun"]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    first = warm.start(*torchrun, *run_it, cwd=place, env=env)
    while not list((place / "torchrun").glob("blocks/*.block")):
        time.sleep(0.001)
    children = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
    first.communicate()
    second = warm.run(*torchrun, *run_it, "--resume", cwd=place, env=env)
    assert second.returncode == 0, second.stderr
    assert document(second.stdout) == alone[0]
    assert content(place / "torchrun") == alone[1]


def test_an_error_of_all_is_said_once(place):
    _, err = run(2, "stats", "images", *TINY, "--layer", "nonsense", cwd=place, code=2)
    assert err.count("error: ") == 1


def test_several_machines_need_a_folder(place):
    _, err = run(2, *STATS, cwd=place, code=2, LOCAL_WORLD_SIZE="1")
    assert "several machines need a shared folder" in err


@pytest.mark.parametrize(("argv", "why"), [
    (("--input-shape", "2,3,32,32"), "noise is not a list of image files"),
    (("images", "--size", "32", "--mode", "train"), "train mode"),
    (("images", "--size", "32", "--hook", "zero@conv"), "--hook"),
])  # fmt: skip
def test_what_cannot_be_shared_is_refused(place, argv, why):
    _, err = run(2, "stats", *argv, *TINY, cwd=place, code=2)
    assert why in err
    assert "processes cannot share the work" in err
    assert err.count("error: ") == 1


def cold(*argv, cwd, **more):
    """Run one process of which torch reads the number of threads as it is imported."""
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | more
    return subprocess.run(
        [sys.executable, "-m", "modelscope_cli", *argv],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_threads_are_those_of_any_number_of_processes(place, alone):
    done = cold(*STATS, "--out", "threads", cwd=place)
    assert document(done.stdout) == alone[0]
    assert "one thread" in done.stderr or os.cpu_count() == 1


def test_predictions_and_their_truth_have_the_same_bits(place):
    (place / "truth.csv").write_text(
        "".join(f"{number:03d}.png,{number % 10}\n" for number in range(N_IMAGES))
    )
    (place / "some.txt").write_text("".join(f"images/{number:03d}.png\n" for number in range(36, 76)))
    rows = ("predict", "@some.txt", *TINY, "--size", "32", "--top", "2")
    alone, _ = run(None, *rows, cwd=place, OMP_NUM_THREADS="1")
    assert len(alone.splitlines()) == 1 + 2 * (40 - 8)
    assert run(3, *rows, cwd=place)[0] == alone
    judged = (*rows[:-2], "--truth", "truth.csv", "--json", "--out")
    one = document(run(None, *judged, "one", cwd=place)[0])
    (place / "one/blocks/images-000004.block").unlink()
    run(None, *judged, "one", "--resume", cwd=place)
    two = document(run(2, *judged, "two-judge", cwd=place)[0])
    assert two == one
    assert content(place / "two-judge") == content(place / "one")
    for name in ("worst.png", "worst.csv", "reliability.png"):
        assert (place / "one" / name).read_bytes() == (place / "two-judge" / name).read_bytes()


def test_explanations_have_the_same_bits(place):
    (place / "few.txt").write_text("".join(f"images/{number:03d}.png\n" for number in range(38, 51)))
    argv = (
        "explain",
        "@few.txt",
        *TINY,
        "--size",
        "32",
        "--method",
        "hirescam,saliency",
        "--receipt",
        "none",
    )
    one = document(run(None, *argv, "--json", "--out", "why", cwd=place)[0])
    two = document(run(2, *argv, "--json", "--out", "why-two", cwd=place)[0])
    assert two == one
    assert one["images"] == 5
    assert (place / "why/explanation.png").read_bytes() == (place / "why-two/explanation.png").read_bytes()
