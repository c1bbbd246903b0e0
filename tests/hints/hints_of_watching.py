"""What is wrong with `watch`."""

from modelscope_cli.shell.app import run

ROWS = """
watch python watched.py
watch
watch watchd.py
# the nearest is another script, and broken
watch lost.py ~> is not Python
watch full/watched.py
watch -m no_such_module
watch syntax.py
watch --steps 0 watched.py
watch --every 0 watched.py
watch --abort-on nann watched.py
# the pattern is read now, and matches nothing
watch --layer conv@1 watched.py ~> matches no layer
watch --strict watched.py
watch --report lost
watch --report few watched.py ~> no log.jsonl
watch --report old_log
watch --report new_log
watch --report bad_log
watch --like lost watched.py

# from Python
>>> ms.watch('watched.py', steps=0) => ms.watch('watched.py', steps=10)
>>> ms.watch(3) => ms.watch(net).__enter__().__exit__(None, None, None)
>>> ms.watch(Bare()) => ms.watch(net).__enter__().__exit__(None, None, None)
>>> ms.watch(net, 3) => ms.watch(net).__enter__().__exit__(None, None, None)
>>> ms.watch(net, arguments=['x']) => ms.watch(net).__enter__().__exit__(None, None, None)
>>> ms.watch('watched.py', torch.optim.SGD(net.parameters())) => ms.watch('watched.py')
>>> [ms.watch(net).__enter__() for _ in range(2)] => 1
"""


def forced_several_machines(patch):
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        patch.setenv(name, value)
    return "watch watched.py !> needs several machines"


def forced_script_of_others(patch):
    def read(*given):
        raise PermissionError(13, "Permission denied")

    patch.setattr("io.open_code", read)
    return "watch watched.py"


def forced_result_of_another_command(patch):
    assert run(["summary", "models.py:Tiny", "-o", "a.json", "--quiet"]) == 0
    return "watch --like a.json watched.py"


FORCED = [forced_several_machines, forced_script_of_others, forced_result_of_another_command]
_PROCESSES = "needs several processes, one of which fails or comes late"
EXCUSED = {
    "watching/ranks.py share_folder: '--out FOLDER'": _PROCESSES,
    "watching/ranks.py wait_for_first: f'--out {shlex.quote(str(folder))} --force'": _PROCESSES,
    "watching/ranks.py wait_for_first: '--out FOLDER'": _PROCESSES,
}
