"""Run one command line and map every exception to an exit code. Typer is imported when needed."""

import os
import shlex
import sys
from collections.abc import Callable

from modelscope_cli import __version__, interrupts
from modelscope_cli.errors import CannotRunError, ModelscopeError, failed_device
from modelscope_cli.interrupts import INTERRUPTED, Terminated, is_cut_short
from modelscope_cli.lean import lean_imports
from modelscope_cli.output_files import release_claims
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.run import over
from modelscope_cli.shell import console as _console
from modelscope_cli.shell.overview import COMMANDS, FORMER, HELP, HELP_ALL, overview

USAGE, BUG = 2, 3
_COMPLETION = ["--install-completion"], ["--show-completion"]
_AT_ONCE: dict[str, Callable[[], str]] = {
    **dict.fromkeys((*HELP, HELP_ALL), overview),
    **dict.fromkeys(("--version", "-V"), lambda: f"modelscope {__version__}"),
}


def _typed(argv: list[str]) -> tuple[str, ...]:
    """Return the command to run or to complete; empty if there is none."""
    words = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", "")).split()
    return tuple(name for name in (argv or words[1:])[:1] if name in COMMANDS)


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code; every exception ends here.

    0 success, 1 a check found something, 2 usage, 3 internal error, 4 cannot run, 129 hung up, 130 interrupted,
    143 terminated.
    """
    argv = [*FORMER.get(argv[0], argv[:1]), *argv[1:]] if argv else argv
    _console.begin(tuple(argv))
    try:
        return _run(argv)
    except (KeyboardInterrupt, Terminated) as signal:
        number = signal.code if isinstance(signal, Terminated) else INTERRUPTED
        _console.stopped("interrupted" if number == INTERRUPTED else "terminated")
        return number
    except Exception as error:  # raised while another one was handled
        return _failed(error) if isinstance(error, ModelscopeError) else _crashed(error)
    finally:
        release_claims()
        _console.end()
        over()


def _run(argv: list[str]) -> int:
    try:
        if len(argv) == 1 and argv[0] in _AT_ONCE:
            _console.write(_AT_ONCE[argv[0]]() + "\n")
            _console.flush()
            return 0
        from modelscope_cli.shell.typer_app import command_line

        if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
            from modelscope_cli.shell.hints import unknown_command

            raise unknown_command(argv)
        if argv and argv[0] in COMMANDS:
            from modelscope_cli.shell.hints import refuse_swallowed

            refuse_swallowed(argv)
        command = command_line(_typed(argv))
        with lean_imports():
            is_completed = "_MSCOPE_COMPLETE" in os.environ or argv[:1] in _COMPLETION
            is_short = is_completed and os.path.basename(sys.argv[0]).startswith("mscope")
            name = "mscope" if is_short else "modelscope"  # in help and hints; completion works for both
            code = command(args=argv, prog_name=name, standalone_mode=False)
        _console.flush()
        if is_cut_short():
            _console.stopped("interrupted", is_partial=True)
            return INTERRUPTED
        return code if isinstance(code, int) else 0
    except ModelscopeError as error:
        return _failed(error)
    except SystemExit as left:
        return _left(left)
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        # Without errno it does not come from the system but from a library that may have been called wrongly.
        return _crashed(error) if error.errno is None else _failed(_unusable(error))
    except Exception as error:
        interrupts.obey()  # Python itself raises RuntimeError in place of what a signal raised in `__set_name__`
        if (failed := failed_device(error)) is not None:
            return _failed(CannotRunError(*failed))
        # Typer vendors Click's exceptions and does not export them.
        is_click = any(kind.__name__ == "ClickException" for kind in type(error).__mro__)
        return _misused(error) if is_click else _crashed(error)


def _failed(error: ModelscopeError) -> int:
    if _console.settings.is_debug:
        _console.show_traceback(error)
    if error.hint:
        from modelscope_cli.shell.hints import filled_in

        error.hint = filled_in(error.hint, _console.settings.argv, error.message)
    if interrupts.resumable:
        _console.say(f"the finished parts are stored in '{interrupts.resumable}', for --resume")
    _console.fail(error)
    return error.exit_code


def _left(left: SystemExit) -> int:
    # Typer and Rich exit with 1 on a broken pipe; here that would mean a finding.
    if isinstance(left.__context__, BrokenPipeError):
        return _unread()
    if _console.settings.out is None:  # Typer's completion, or a process that the script of `watch` forked
        raise left
    failure = CannotRunError(f"the code of the model called sys.exit({left.code!r})", _again())
    failure.__cause__ = left
    return _failed(failure)


def _unread() -> int:
    _console.abandon_stdout()
    return 0


def _unusable(error: OSError) -> CannotRunError:
    """Turn an error of the system into one about its file, else about a stream."""
    if error.filename is None:
        return _console.cannot_write(error.strerror)
    path = _shortened(
        os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    )
    return CannotRunError(f"cannot use '{path}': {error.strerror}", f"ls -ld {shlex.quote(path)}")


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:300]} ... {text[-90:]}"


def _misused(error: Exception) -> int:
    """Report a command line that Typer could not parse."""
    from modelscope_cli.shell.hints import what_was_meant

    if type(error).__name__ == "NoArgsIsHelpError":  # `modelscope` alone: the message is the help
        _console.write(f"{error}\n")
        return USAGE
    message, hint = what_was_meant(error, _console.settings.argv)
    _console.fail(ModelscopeError(_shortened(message), _shortened(hint)))
    return USAGE


def _crashed(error: Exception) -> int:
    if _console.settings.is_debug:
        _console.show_traceback(error)
    summary = in_one_line(f"{type(error).__name__}: {error}", 300)
    _console.fail(ModelscopeError(f"this is a bug in modelscope: {summary}", f"{_again()}; please report it"))
    return BUG


def _again() -> str:
    line = shlex.join(argument for argument in _console.settings.argv if argument != "--debug")
    return f"modelscope {line} --debug   shows where"
