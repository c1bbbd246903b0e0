"""What Windows lacks is not needed: `watch`, `stats` and `train` where the names of POSIX are taken away."""

import json
import sys

import pytest
import warm

# As on Windows with Python 3.11; these are imported first, as they ask for the system, not for names.
IMPORTED = ("torch._dynamo", "torchvision")
TAKEN = """
import multiprocessing, os, signal, subprocess, sys
names = {
    os: "fork forkpty register_at_fork set_blocking get_blocking sched_getaffinity sched_setaffinity killpg setsid "
        "getpgid getpgrp getsid wait wait3 wait4 WNOHANG O_CLOEXEC O_NONBLOCK O_NOFOLLOW O_DIRECTORY O_PATH fchmod "
        "fchown chown geteuid getuid getgid mkfifo pread pwrite pipe2 uname sysconf getloadavg statvfs nice",
    signal: "SIGCHLD SIGHUP SIGKILL SIGALRM SIGPIPE SIGUSR1 SIGUSR2 pthread_sigmask pthread_kill setitimer alarm "
            "sigwait siginterrupt",
}
for module, words in names.items():
    for word in words.split():
        if hasattr(module, word):
            delattr(module, word)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None
multiprocessing.set_start_method("spawn")
sys.platform = PLATFORM
from modelscope_cli.shell.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    file = tmp_path_factory.mktemp("taken") / "taken.py"
    file.write_text(TAKEN.replace("PLATFORM", repr("win32" if sys.platform == "win32" else "other")))
    return file


@pytest.mark.parametrize("line", [
    "watch --json --out run {samples}/train.py --steps 6",
    "stats --json {samples}/tiny_resnet.py:TinyResNet {samples}/shapes --weights none --workers 1",
    "train --json {samples}/tiny_resnet.py:TinyResNet --steps 3 --out trained",
])  # fmt: skip
def test_a_command(taken, samples, tmp_path, line):
    words = line.format(samples=samples).split()
    told = warm.run(taken, *words, cwd=tmp_path, imported=IMPORTED)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["schema"] == f"modelscope/{words[0]}/1"


def test_the_names_are_needed_where_nothing_asks_for_them(taken, tmp_path):
    """The test above could fail."""
    (tmp_path / "uses.py").write_text("import os; os.set_blocking(0, False)")
    told = warm.run(taken, "watch", "uses.py", cwd=tmp_path, imported=IMPORTED)
    assert told.returncode == 1
    assert "has no attribute 'set_blocking'" in told.stderr
