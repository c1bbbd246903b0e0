"""Every hint is pasted below the line that failed, and what comes of it runs; no place that makes one is missed."""

import importlib
import subprocess
from pathlib import Path

import hint_sites
import pytest
import rows
from stage import make_stage

from modelscope_cli.models.names import timm_names

ROOMS = {
    "hints_of_inputs": ("inputs/",),
    "hints_of_models": ("models/",),
    "hints_of_checkpoints": ("checkpoints/", "paths.py", "analysis/weights/"),
    "hints_of_hooks": ("hooks/", "analysis/interventions.py", "analysis/hook.py"),
    "hints_of_training": ("training/",),
    "hints_of_watching": ("watching/", "commands/watch/"),
    "hints_of_gradients": ("analysis/gradients/", "analysis/attack/"),
    "hints_of_predictions": (
        "analysis/predictions/",
        "analysis/outputs/",
        "analysis/dataset/",
        "commands/predict/",
    ),
    "hints_of_explaining": ("analysis/explaining/", "commands/explain/"),
    "hints_of_comparison": ("analysis/comparison/", "commands/diff/"),
    "hints_of_pruning": ("analysis/pruning/", "analysis/ablation/", "commands/ablate/"),
    "hints_of_blocks": ("analysis/blocks/",),
    "hints_of_activations": ("analysis/activations/", "analysis/top_images/", "analysis/subject.py"),
    "hints_of_summary": ("analysis/summary/", "commands/summary/"),
    "hints_of_report": ("report/", "records/", "rules/", "testing.py", "examples.py"),
    "hints_of_shell": ("shell/", "commands/check/", "commands/grads/", "commands/help/"),
}


@pytest.fixture(scope="session")
def whole_stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    make_stage(folder)
    return folder


@pytest.fixture
def stage(tmp_path, monkeypatch, whole_stage):
    monkeypatch.setenv("MSCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "stage"
    subprocess.run(["cp", "-a", whole_stage, folder], check=True)  # with pipes and links
    monkeypatch.chdir(folder)
    return folder


def names_of_python():
    import numpy
    import torch
    from PIL import Image

    import modelscope_cli as ms
    from modelscope_cli import testing

    space = {
        "ms": ms,
        "torch": torch,
        "np": numpy,
        "Image": Image,
        "nn": torch.nn,
        "Path": Path,
        "testing": testing,
    }
    exec(Path("models.py").read_text(), space)
    torch.manual_seed(0)
    return {**space, "net": space["Tiny"](), "x": torch.rand(2, 3, 16, 16)}


@pytest.mark.parametrize("room", ROOMS)
def test_each_hint_of_a_room_can_be_pasted(stage, monkeypatch, undrawn, room):
    table = importlib.import_module(room)
    wrong, tidy, names = [], rows.tidied(stage), names_of_python()
    with hint_sites.recorded(monkeypatch) as reached:
        for row in rows.rows(table.ROWS):
            wrong += [f"{row}\n    {problem}" for problem in rows.check(row, names)]
            tidy()
        for forced in getattr(table, "FORCED", ()):
            with monkeypatch.context() as patch:
                row = next(rows.rows(forced(patch)))
                wrong += [f"{forced.__name__}\n    {problem}" for problem in rows.check(row, names)]
            timm_names.cache_clear()
            tidy()
    excused = getattr(table, "EXCUSED", {})
    mine = list(hint_sites.sites(ROOMS[room]))
    missed = [site for site in mine if (site.file, site.at) not in reached]
    named = {f"{site.file} {site.where}" for site in missed}
    wrong += [f"no row reaches {site}" for site in missed if f"{site.file} {site.where}" not in excused]
    wrong += [f"is excused and need not be: {name}" for name in excused if name not in named]
    assert not wrong, f"{len(wrong)} of {room}:\n" + "\n".join(wrong)


def test_every_place_belongs_to_a_room():
    starts = tuple(start for room in ROOMS.values() for start in room)
    assert [str(site) for site in hint_sites.sites() if not site.file.startswith(starts)] == []
