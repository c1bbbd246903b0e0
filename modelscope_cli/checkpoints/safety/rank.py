"""Rate names as dangerous, unknown or known. Standard library.

Dangerous names are in `dangerous_names.txt`, those that only hold values in `known_names.txt`.
"""

import sys
from dataclasses import dataclass

from modelscope_cli.checkpoints.pickle_machine import Global
from modelscope_cli.checkpoints.safety.known_names import KNOWN_NAMES, read_sections
from modelscope_cli.records.weights import DANGEROUS, KNOWN, UNKNOWN

# Modules reachable through any other: `anything.os.system`, `six.moves.builtins.eval`.
_EVERYWHERE = """
    os posix nt subprocess sys builtins __builtin__ importlib ctypes pty runpy pickle _pickle marshal shutil socket
    multiprocessing"""

DANGEROUS_NAMES: dict[str, str] = {
    name: reason for reason, names in read_sections("dangerous_names.txt").items() for name in names
}
ANYWHERE = frozenset(_EVERYWHERE.split())

# Names that mean the same in every module they were imported into.
_LAST_PARTS = """
    system popen Popen exec eval execfile check_output check_call getoutput getstatusoutput import_module
    urlopen urlretrieve run_module run_path exec_module load_module attrgetter methodcaller FunctionType
    CodeType LambdaType ModuleType startfile execv execve execvp execl spawnl spawnv posix_spawn forkpty
    _load_from_bytes read_pickle load_library cdll CDLL WinDLL PyDLL runcode runsource runctx lambdify
    exec_command literal_exec unsafe_load run_code _run_code create_subprocess_shell create_subprocess_exec
    rmtree unlink"""
LAST_PARTS = frozenset(_LAST_PARTS.split())


# Standard library modules removed since Python 3.11, for the same answer on every version.
_DROPPED = """
    aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib
    ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib __builtin__"""
_STANDARD = sys.stdlib_module_names | set(_DROPPED.split())
# Special names of modules with the user's own classes, and of TorchScript.
_OWN = ("__main__", "__mp_main__", "__torch__")


@dataclass(frozen=True, slots=True)
class Rating:
    """A rank and the reason, a sentence without its subject; `is_call`: whether a call is rated, not a name."""

    rank: str
    reason: str
    is_call: bool = False


_IS_KNOWN = Rating(KNOWN, "holds values only")
_IS_UNKNOWN = Rating(UNKNOWN, "is not on the list of classes that only hold values")


def rank(found: Global) -> Rating:
    """Rate a name, regardless of arguments."""
    if found.name in KNOWN_NAMES:
        return _IS_KNOWN
    attribute = found.name[len(found.module) + 1 :]
    return _dangerous(found.module, attribute) or _IS_UNKNOWN


def is_class_like(name: str) -> bool:
    """Tell whether a name looks like a class, `Conv2d` or `_Loss`, not a function or module."""
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def is_reaching(name: str) -> str | None:
    """Return why an attribute of this name is dangerous on any object; None if it is not."""
    if len(name) > 4 and name.startswith("__") and name.endswith("__"):
        return f"accesses the private Python attribute '{name}'"
    return f"is called '{name}', like functions that run code" if name in LAST_PARTS else None


def _dangerous(module: str, attribute: str) -> Rating | None:
    modules, attributes = module.split("."), attribute.split(".")
    reason = (
        _below_listed(f"{module}.{attribute}")
        or next(filter(None, map(is_reaching, [*modules[modules[0] in _OWN :], *attributes])), None)
        or next((f"reaches '{part}'" for part in [*modules[1:], *attributes] if part in ANYWHERE), None)
        or (_through(module, attributes) if len(attributes) > 1 else None)
        or (_of_python(modules, attribute) if modules[0] in _STANDARD else None)
    )
    return Rating(DANGEROUS, reason) if reason else None


def _below_listed(name: str) -> str | None:
    """Return why a name or one of its parents is listed; None if not listed."""
    while name and name not in DANGEROUS_NAMES:
        name = name.rpartition(".")[0]
    return DANGEROUS_NAMES.get(name)


def _through(module: str, attributes: list[str]) -> str | None:
    """Judge a dotted name: attributes of a class stay in it, those of a module may be anything."""
    for n in range(len(attributes)):
        listed = _below_listed(".".join(attributes[n:]))
        if listed is not None:
            return f"{listed}, reached through '{module}'"
    if attributes[0] in _STANDARD or not is_class_like(attributes[0]):
        return f"is reached through '{module}'"
    return None


def _of_python(modules: list[str], attribute: str) -> str | None:
    """Judge a name of the standard library: of a class in a public module only the constructor could do harm."""
    is_private = any(module.startswith("_") for module in modules)
    if is_class_like(attribute) and not is_private:
        return None
    return f"is a {'private ' * is_private}part of Python's own library that no checkpoint needs"
