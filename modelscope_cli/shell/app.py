"""The app object and the one error boundary."""

import inspect
import os
import re
import shlex
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from modelscope_cli import __version__
from modelscope_cli.errors import LESS_MEMORY, OUT_OF_MEMORY, CannotRunError, ModelscopeError
from modelscope_cli.interrupts import INTERRUPTED, TERMINATED, Terminated
from modelscope_cli.lean import lean_imports
from modelscope_cli.records.run import over
from modelscope_cli.report.folder import release_claims
from modelscope_cli.shell import console as _console
from modelscope_cli.shell.old_names import renewed

USAGE, BUG = 2, 3

# In the order in which --help lists them; each is the function of its name in the module of its name.
COMMANDS = (
    *("watch", "summary", "stats", "featuremaps", "grads"),
    *("predict", "explain", "ablate", "prune", "attack"),
    *("train", "lrfind"),
    *("check", "rules", "diff", "weights", "models", "schema"),
)
# What follows the script belongs to the script.
_SETTINGS: dict[str, dict[str, Any]] = {"watch": {"allow_interspersed_args": False}}


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        _console.write(f"modelscope {__version__}\n")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """See what happens inside a PyTorch vision model."""


def make_app(names: Iterable[str] = COMMANDS, *, has_options: bool = True) -> typer.Typer:
    """Return the application with these commands; whoever runs one need not pay for reading the others.

    Args:
        has_options: whether the commands have theirs; to list the commands nobody needs them.
    """
    app = typer.Typer(
        name="modelscope",
        help="See what happens inside a PyTorch vision model.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_main)
    for name in names:
        command = getattr(import_module(f"modelscope_cli.commands.{name}.command"), name)
        registered = app.command(
            name, help=_paragraphs(command.__doc__), context_settings=_SETTINGS.get(name)
        )
        registered(command if has_options else lambda: None)
    return app


def _paragraphs(doc: str) -> str:
    """Return a docstring that a terminal of any width can wrap: one line a paragraph."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(doc))


def _typed(argv: list[str]) -> Iterable[str]:
    """Return the one command that is run, or whose words the shell wants completed; all where that is not clear."""
    if argv in (["--version"], ["-V"]):
        return ()
    words = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", "")).split()
    first = (argv or words[1:])[:1]
    return first if first and first[0] in COMMANDS else COMMANDS


# Typer brings its own copy of Click's exceptions; BadParameter is the one it exports.
_ClickError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code; every exception ends here.

    0 done, 1 a check found something, 2 usage, 3 a bug of ours, 4 cannot run, 130 interrupted, 143 terminated.
    """
    _console.begin(tuple(argv))
    try:
        return _run(argv)
    finally:
        release_claims()
        _console.end()
        over()


def _run(argv: list[str]) -> int:
    try:
        app = make_app(_typed(argv), has_options=argv not in (["--help"], ["-h"]))
        with lean_imports():
            code = app(args=renewed(argv), prog_name="modelscope", standalone_mode=False)
        _console.flush()
        return code if isinstance(code, int) else 0
    except ModelscopeError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except _ClickError as error:
        return _misused(error)
    except SystemExit as left:
        # Typer and Rich leave with 1 when the reader of a pipe has gone; here that would mean a finding.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        return _unread()
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        # Without a number it is none of the system's, but raised by a library that may have been called wrongly.
        return _crashed(error) if error.errno is None else _failed(_unusable(error))
    except MemoryError:
        return _failed(ModelscopeError(OUT_OF_MEMORY, LESS_MEMORY))
    except Exception as error:
        return _crashed(error)


def _failed(error: ModelscopeError) -> int:
    if _console.settings.is_debug:
        _console.show_traceback(error)
    _console.fail(error)
    return error.exit_code


def _unread() -> int:
    _console.abandon_stdout()
    return 0


def _unusable(error: OSError) -> CannotRunError:
    """Explain what the system refused: a file where there is a name, else a stream."""
    if error.filename is None:
        return CannotRunError(f"cannot write: {error.strerror}", "modelscope ... --output FILE-ELSEWHERE")
    shown = _shortened(
        os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    )
    return CannotRunError(f"cannot use '{shown}': {error.strerror}", f"ls -ld {shlex.quote(shown)}")


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:300]} ... {text[-90:]}"


def _misused(error: Exception) -> int:
    """A command line that Typer itself could not read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "modelscope"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message:  # `modelscope` alone: the help was shown
        return USAGE
    message = _shortened(" ".join(message.split()).rstrip("."))
    _console.fail(ModelscopeError(message[:1].lower() + message[1:], f"{path} --help"))
    return USAGE


def _crashed(error: Exception) -> int:
    if _console.settings.is_debug:
        _console.show_traceback(error)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    again = " ".join(argument for argument in _console.settings.argv if argument != "--debug")
    hint = f"modelscope {again} --debug   shows where; please report it"
    _console.fail(ModelscopeError(f"this is a bug in modelscope: {what[:300]}", hint))
    return BUG
