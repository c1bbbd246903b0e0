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


def forced_several_machines(patch):
    for name, value in (
        ("GROUP_WORLD_SIZE", "2"),
        ("WORLD_SIZE", "2"),
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
    ):
        patch.setenv(name, value)
    return "predict two {T} !> needs several machines"


FORCED = [value for name, value in list(globals().items()) if name.startswith("forced_")]
EXCUSED = {}
