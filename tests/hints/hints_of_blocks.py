"""What is wrong with a run of many blocks, continued, shared or verified."""

from pathlib import Path

from modelscope_cli.shell.app import run

ROWS = """
# which run it is, only the person knows
stats two {T} --resume ~> no run to continue
stats two {T} --resume --out somewhere
verify folder => verify folder --help

# from Python
>>> ms.verify('lost') => 1
"""


def _begun(options=""):
    assert (
        run(
            f"predict two -m models.py:Tiny --batch 1 --out kept --quiet -o out.csv --force {options}".split()
        )
        == 0
    )


def forced_two_runs_in_a_folder(patch):
    _begun()
    return "predict two {T} --batch 1 --out kept"


def forced_another_run(patch):
    _begun()
    return "predict two {T} --batch 1 --out kept --resume --seed 1 ~> holds the blocks of another run"


def forced_broken_block(patch):
    _begun()
    next(path for path in Path("kept").rglob("*") if path.is_file() and "blocks" in path.parts).write_text(
        "{"
    )
    return "verify kept ~> not finished"


def forced_run_of_a_module(patch):
    return ">>> (ms.predict(net, ['two/a.png', 'two/b.png'], batch=1, out='of_module'), ms.verify('of_module')) => 1"


def forced_continued_without_blocks(patch):
    _begun()
    # left out, the folder is that of another run
    return "predict {T} --input x=image.pt --resume --out kept ~> holds the blocks"


def forced_several_machines(patch):
    for name, value in (
        ("GROUP_WORLD_SIZE", "2"),
        ("WORLD_SIZE", "2"),
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
    ):
        patch.setenv(name, value)
    return "predict two {T} !> needs several machines"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
_PROCESSES = "needs several processes, one of which ends or comes late"
EXCUSED = {
    "analysis/blocks/verifying.py begin: 'run it from the same folder, with the files as they were'": "needs a list of images that has changed",
    "analysis/blocks/blocks.py _refuse_alone: 'start one without torchrun'": _PROCESSES,
    "analysis/blocks/meeting.py hear: 'start the command again'": _PROCESSES,
    "analysis/blocks/meeting.py check: _RESUME": _PROCESSES,
    "analysis/blocks/meeting.py _explained: _RESUME": _PROCESSES,
    "analysis/blocks/kept.py _wait_for: 'start the same command with --resume'": _PROCESSES,
    "analysis/blocks/kept.py take: 'leave out --resume   and give another --out'": "needs a folder in which somebody exchanged files",
}
