"""Whatever really runs code under `torch.load(weights_only=False)` is named, and is never called loadable."""

import random
import subprocess
import sys
from pathlib import Path

import handed_code
import hostile
import pytest
import torch

from modelscope_cli.checkpoints.safety.scan import scan_file
from modelscope_cli.records.weights import CALL, DANGEROUS, KNOWN

LOAD_ALL = Path(__file__).with_name("load_all.py")
# A million operations: once is enough.
LARGE = ("much before",)
N_CONTAINERS = 2
N_HANDED = 6  # of each kind


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[tuple[str, Path, Path]]:
    """Every kind in an archive and in containers by lot: what it is, the file, the mark it leaves."""
    folder = tmp_path_factory.mktemp("hostile")
    chance = random.Random(0)
    found = []
    for number, (kind, make) in enumerate(hostile.KINDS.items()):
        others = [] if kind in LARGE else chance.sample(list(hostile.CONTAINERS)[1:], N_CONTAINERS)
        for container in ("zip", *others):
            stem = f"{number}_{container.replace(' ', '_')}"
            mark, path = folder / f"{stem}.mark", folder / f"{stem}.pt"
            path.write_bytes(hostile.CONTAINERS[container](make(str(mark))))
            found.append((f"{kind} in {container}", path, mark))
    return found


@pytest.fixture(scope="module")
def ran(files) -> set[str]:
    """What left its mark once torch had loaded it in full."""
    return run(files)


@pytest.fixture(scope="module")
def scanned(files):
    return {what: scan_file(path) for what, path, _ in files}


def run(files: list[tuple[str, Path, Path]]) -> set[str]:
    """Load files in full in another process, and return what left its mark."""
    lines = "\n".join(str(path) for _, path, _ in files)
    command = [sys.executable, str(LOAD_ALL)]
    subprocess.run(command, input=lines, text=True, capture_output=True, check=False, timeout=240)
    return {what for what, _, mark in files if mark.exists()}


@pytest.mark.slow
def test_the_files_are_as_hostile_as_they_should_be(files, ran):
    assert len(files) >= 150
    assert {what for what, _, _ in files if what.endswith("in zip")} <= ran
    assert len(ran) >= 0.9 * len(files)


def test_all_are_named_dangerous_whether_they_run_or_not(scanned):
    assert [what for what, safety in scanned.items() if safety.rank != DANGEROUS] == []
    assert all(safety.dangerous and safety.foreign for safety in scanned.values())


@pytest.mark.filterwarnings("ignore")
def test_none_is_said_to_load_as_weights_only(files, scanned):
    for what, path, _ in files:
        assert scanned[what].weights_only.loads in ("no", "unasked"), what
        with pytest.raises(Exception, match=r"."):
            torch.load(path, weights_only=True)


PEERS = [
    pytest.param("picklescan.scanner", marks=pytest.mark.slow),
    pytest.param("modelscan.modelscan", marks=pytest.mark.peers),
]


@pytest.mark.parametrize("peer", PEERS)
def test_what_others_name_is_named(files, scanned, peer):
    module = pytest.importorskip(peer)
    for what, path, _ in files:
        if peer.startswith("picklescan"):
            is_found = module.scan_file_path(str(path)).issues_count > 0
        else:
            is_found = bool(module.ModelScan().scan(str(path))["issues"])
        assert not is_found or scanned[what].rank == DANGEROUS, what


def test_known_names_that_call_what_they_are_handed(tmp_path):
    files = []
    for kind, make in handed_code.KINDS.items():
        for number in range(N_HANDED):
            chance = random.Random(f"{kind}{number}")
            mark, path = tmp_path / f"{kind}{number}.mark", tmp_path / f"{kind}{number}.pt"
            path.write_bytes(
                hostile.CONTAINERS[chance.choice(list(hostile.CONTAINERS))](make(chance, str(mark)))
            )
            files.append((f"{kind} {number}", path, mark))
    ran = run(files)
    assert {what.split()[0] for what in ran} == set(handed_code.KINDS)
    assert len(ran) >= 0.7 * len(files)
    found = {what: scan_file(path) for what, path, _ in files}
    assert [what for what in ran if found[what].rank == KNOWN or not found[what].fails(CALL)] == []
    assert [what for what in ran if found[what].weights_only.loads in ("yes", "with names")] == []
