"""The app object and the one error boundary."""

import errno
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from modelscope_cli import __version__
from modelscope_cli.cli import _console
from modelscope_cli.cli.ablate import ablate
from modelscope_cli.cli.attack import attack
from modelscope_cli.cli.check import check
from modelscope_cli.cli.diff import diff
from modelscope_cli.cli.featuremaps import featuremaps
from modelscope_cli.cli.grads import grads
from modelscope_cli.cli.lrfind import lrfind
from modelscope_cli.cli.models import models
from modelscope_cli.cli.predict import predict
from modelscope_cli.cli.prune import prune
from modelscope_cli.cli.rules import rules
from modelscope_cli.cli.stats import stats
from modelscope_cli.cli.summary import summary
from modelscope_cli.cli.train import train
from modelscope_cli.cli.watch import watch
from modelscope_cli.cli.weights import weights
from modelscope_cli.errors import ModelscopeError

USAGE, BUG, INTERRUPTED = 2, 3, 130

app = typer.Typer(
    name="modelscope",
    help="See what happens inside a PyTorch vision model.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[Callable[..., object], ...] = (
    *(watch, summary, stats, featuremaps, grads),
    *(predict, ablate, prune, attack),
    *(train, lrfind),
    *(check, rules, diff, weights, models),
)
for command in _COMMANDS:
    app.command()(command)
# What follows the script belongs to the script.
app.command(context_settings={"allow_interspersed_args": False})(watch)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        _console.write(f"modelscope {__version__}\n")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """See what happens inside a PyTorch vision model."""


# Typer brings its own copy of Click's exceptions; BadParameter is the one it exports.
_ClickError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code; every exception ends here.

    0 done, 1 a check found something, 2 usage, 3 a bug of ours, 4 cannot run, 130 interrupted.
    """
    _console.begin(tuple(argv))
    try:
        code = app(args=argv, prog_name="modelscope", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ModelscopeError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return INTERRUPTED
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
        return (
            _failed(_cannot_write(error)) if error.errno in (errno.ENOSPC, errno.EDQUOT) else _crashed(error)
        )
    except MemoryError:
        return _failed(ModelscopeError("out of memory", "--batch 1, or a smaller --size"))
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


def _cannot_write(error: OSError) -> ModelscopeError:
    return ModelscopeError(f"cannot write: {error.strerror}", "modelscope ... --output FILE-ELSEWHERE")


def _misused(error: Exception) -> int:
    """A command line that Typer itself could not read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "modelscope"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message:  # `modelscope` alone: the help was shown
        return USAGE
    message = " ".join(message.split()).rstrip(".")
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
