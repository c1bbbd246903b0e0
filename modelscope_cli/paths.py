"""Check typed paths before they are opened. Standard library."""

import difflib
import os
import shlex
import stat
from pathlib import Path

from modelscope_cli.errors import CannotRunError, nearest_by_number, quoted

_KINDS = {
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def is_open(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is an open file descriptor: /dev/fd/63, /dev/stdout."""
    return os.fspath(path).startswith(("/dev/fd/", "/proc/self/fd/", "/dev/std"))


def with_file(option: str, path: Path, suffix: str) -> str:
    """Return a hint: the option with the suffix corrected, or with a file inside a typed folder."""
    better = path / f"result{suffix}" if not path.name or path.is_dir() else path.with_suffix(suffix)
    return f"{option} {shlex.quote(str(better))}"


def look_for(path: str | os.PathLike[str]) -> str:
    """Return a hint for a missing path: the nearest file of its kind beside it, `ls` of the nearest folder above
    it, or the command that writes `demo/`, which the examples name."""
    path = Path(path)
    if path.parts[:1] in (("http:",), ("https:",)):
        return f"curl -LO {shlex.quote(str(path).replace(':/', '://', 1))}"
    if path.parts[:1] == ("demo",) and not os.path.exists("demo"):
        return "modelscope demo   writes the folder 'demo'"
    if os.path.isdir(path.parent) and not os.path.exists(path):
        beside = [one for one in path.parent.iterdir() if one.is_file() == bool(path.suffix)]
        same = [one.name for one in beside if one.suffix == path.suffix]
        alike = same or [one.name for one in beside if one.stem == path.stem]
        close = difflib.get_close_matches(path.name, alike, n=3, cutoff=0.75)
        near = nearest_by_number(path.name, alike) or close
        near += [one.name for one in path.parent.glob("*.*") if one.stem == path.name]  # without its suffix
        if near:
            return f"did you mean {quoted(str(path.with_name(name)) for name in near)}"
        below = (os.path.join(folder, path.name) for folder in sorted(path.parent.glob("*")))
        if path.suffix and (found := next(filter(os.path.isfile, below), None)):
            return f"did you mean {shlex.quote(found)}"
    return f"ls {shlex.quote(str(next((one for one in path.parents if one.is_dir()), Path())))}"


def refuse_endless(path: str | os.PathLike[str], what: str = "") -> None:
    """Refuse pipes, sockets and devices, which may block for ever; accept folders and missing paths.

    Args:
        what: the expected kind, such as `checkpoint `.
    """
    name = os.fspath(path)
    if is_open(name):
        return
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        return
    for is_kind, kind in _KINDS.items():
        if is_kind(mode):
            raise CannotRunError(f"{what}'{name}' is {kind}, not a file", f"ls -l {shlex.quote(name)}")


def in_repository(path: str | os.PathLike[str] | None) -> str | None:
    """Return an existing file relative to the root of the repository around the current folder, without one to the
    current folder; None for a file outside of it, of an installed package, or that is not there."""
    if path is None or not (os.path.isfile(path) or os.path.islink(path)):  # a broken link is kept as such
        return None
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here).resolve()
    file = Path(path).resolve() if os.path.exists(path) else Path(path).parent.resolve() / Path(path).name
    is_outside = not file.is_relative_to(root) or {"site-packages", "dist-packages"} & set(file.parts)
    return None if is_outside else file.relative_to(root).as_posix()


def project_file(folder: Path) -> Path | None:
    """Return the nearest pyproject.toml, in a folder or above it; None if there is none."""
    return next((p for p in (f / "pyproject.toml" for f in (folder, *folder.parents)) if p.is_file()), None)
