"""The only module that writes to the terminal: results to stdout, everything else to stderr."""

import contextlib
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeVar

from modelscope_cli import interrupts
from modelscope_cli.errors import CannotRunError, ModelscopeError, commented
from modelscope_cli.interrupts import obey
from modelscope_cli.plain_text import plain, plain_lines
from modelscope_cli.ranks import is_first_to_fail
from modelscope_cli.records.progress import spell_time
from modelscope_cli.records.run import invoked_as
from modelscope_cli.shell import live
from modelscope_cli.shell.live import (
    heard_or_not,
    is_coloured,
    is_drawn_over,
    open_closed,
    silence,
    take_every_character,
)
from modelscope_cli.shell.overview import COMMANDS, filled

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress


T = TypeVar("T")


class _Settings:
    """The command line, its start time, and its output options."""

    argv: tuple[str, ...] = ()
    started = 0.0
    is_quiet = False
    is_verbose = False
    is_debug = False
    is_silent = False  # another process prints everything except errors of this one
    has_output = False  # something was written to stdout
    on_failure: Callable[[ModelscopeError], None] | None = None  # writes an error as a result, for CI hosts
    pace: live.Pace | None = None  # the progress of the outermost loop that runs; None without one
    # The stream of results while sys.stdout is what models print to; None outside `begin_work` to `end`.
    out: IO[str] | None = None


settings = _Settings()
_BUSY = live.Busy()


def _console(stream: IO[str]) -> "Console":
    from rich.console import Console

    # Layer names, paths and messages are plain text: no markup, no emoji codes, no highlighting.
    return Console(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        color_system="auto" if is_coloured(stream) else None,
    )


def begin(argv: tuple[str, ...]) -> None:
    """Start the clock, and tolerate closed streams and characters that stdout cannot encode."""
    open_closed()
    settings.argv = argv
    settings.started = time.monotonic()
    invoked_as(argv, settings.started)
    settings.is_quiet = settings.is_verbose = settings.is_debug = settings.is_silent = False
    settings.has_output, settings.pace, settings.on_failure = False, None, None
    interrupts.resumable = ""
    take_every_character(sys.stdout)


def stdout() -> IO[str]:
    """Return the stream of results."""
    return settings.out or sys.stdout


def begin_work(*, is_alone: bool = True) -> None:
    """Show activity if the command takes a while, see `live.Busy`; what a model prints goes to stderr."""
    # The script of `watch` writes above a table as it would without us
    if is_alone or settings.argv[:1] != ("watch",):
        settings.out, sys.stdout = stdout(), sys.stderr
    if not (settings.is_quiet or settings.is_silent):
        _BUSY.start("loading")


def terminal_width() -> int:
    """Return the width of the terminal in characters."""
    return _console(stdout()).width


def write(text: str) -> None:
    """Write a finished result to stdout unchanged."""
    if settings.is_silent:
        return
    with _writing():
        stdout().write(text)
        stdout().flush()


def write_error(text: str) -> None:
    """Write foreign text, such as a script's traceback, to stderr unchanged."""
    with heard_or_not():
        sys.stderr.write(text)
        sys.stderr.flush()


def show(renderable: "RenderableType") -> None:
    """Write a coloured table to stdout."""
    if settings.is_silent:
        return
    with _writing():
        _console(stdout()).print(renderable)
        stdout().flush()


def note(text: str) -> None:
    """Write a note to stderr; silent under --quiet."""
    if not (settings.is_quiet or settings.is_silent):
        write_error(_wrapped(text) + "\n")


def detail(text: str) -> None:
    """Write a detail to stderr, only under --verbose."""
    if settings.is_verbose:
        note(text)


def say(text: str) -> None:
    """Write explicitly requested text to stderr, also under --quiet."""
    write_error(plain(text) + "\n")


def warn(text: str) -> None:
    """Write to stderr a warning about the meaning of the result."""
    if not settings.is_silent:
        _styled("warning: ", "yellow", _wrapped(text, "warning: "))


def fail(error: ModelscopeError) -> None:
    """Write an error, a blank line and a hint to stderr; only in the first process that fails."""
    if not is_first_to_fail():
        return
    tell, settings.on_failure = settings.on_failure, None
    if tell is not None:
        tell(error)
    _styled("error: ", "bold red", _wrapped(error.message, "error: "))
    if error.hint:
        hint(error.hint)


def hint(text: str) -> None:
    """Write to stderr, after an empty line, what to type instead; unwrapped, so that it can be pasted."""
    write_error("\n")
    _styled("hint: ", "bold cyan", plain(commented(text)))


def stopped(word: str, *, is_partial: bool = False) -> None:
    """Write to stderr, as the last line, what an interruption lost and how to go on.

    Args:
        word: what happened, such as `interrupted`.
        is_partial: whether the result was made from what was finished.
    """
    if settings.is_silent:
        return
    from modelscope_cli.shell.parameters import options_of

    _BUSY.stop()
    at = f" ({settings.pace})" if settings.pace is not None else ""
    argv, folder = settings.argv, interrupts.resumable
    if is_partial:
        say(f"{word}{at}: the result covers only what was finished; run the same command again for all of it")
    elif folder:
        say(f"{word}{at}: the finished parts are stored in '{folder}'")
        rest = shlex.join(one for one in argv if one not in ("--force", "--resume"))
        hint(f"modelscope {rest} --resume")
    else:
        lost = "the output is incomplete" if settings.has_output else "nothing was saved"
        say(f"{word}{at}: {lost}; run the same command again to start from the beginning")
        if "images" in at and "--resume" in options_of(argv[0]) and "--doctor" not in argv:
            hint(f"modelscope {shlex.join(argv)} --out DIR   can be continued with --resume")


def show_traceback(error: BaseException) -> None:
    """Write the traceback for --debug to stderr."""
    write_error(plain_lines("".join(traceback.format_exception(error))))


def _wrapped(text: str, label: str = "") -> str:
    """Return text that follows `label`, wrapped between words on a terminal."""
    text = plain(text)
    if not sys.stderr.isatty():
        return text
    return "\n".join(filled(text, " " * len(label), "  ", _console(sys.stderr).width))[len(label) :]


def _styled(label: str, style: str, harmless: str) -> None:
    if not is_coloured(sys.stderr):
        write_error(label + harmless + "\n")
        return
    from rich.text import Text

    with heard_or_not():
        _console(sys.stderr).print(Text.assemble((label, style), harmless), soft_wrap=True)


@contextlib.contextmanager
def progress(description: str, total: int, pace: live.Pace) -> Iterator["Progress | None"]:
    """Show a progress bar on stderr until done; yield None if that is not a terminal."""
    if settings.is_quiet or settings.is_silent or total < 2 or not is_drawn_over(sys.stderr):
        _BUSY.what = f"working on {description}"
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn
    from rich.text import Text

    class Left(TextColumn):  # Rich's own jumps where several items are finished together
        def render(self, task: Task) -> Text:
            seconds = pace.seconds_left()
            return Text("" if seconds is None or task.finished else f"about {spell_time(seconds)} left")

    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Left(""),
    ]
    with _BUSY.paused(), Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield bar
        bar.update(task, completed=total)  # there may have been fewer items than expected


def track(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Iterate over `items` with a progress bar; in a log with a line a minute."""
    pace = live.Pace(what, total)
    settings.pace = settings.pace or (pace if total > 1 else None)
    is_heard = total > 1 and not (settings.is_quiet or settings.is_silent or is_drawn_over(sys.stderr))
    with progress(what, total, pace) as bar:
        for item in items:
            obey()
            yield item
            pace.advance()
            if bar is not None:
                bar.advance(bar.task_ids[0])
            elif is_heard and (line := pace.line()) is not None:
                note(line)
    if settings.pace is pace:
        settings.pace = None


class _ConsoleProgress:
    """The console as the `Progress` of public functions."""

    track, note, detail = staticmethod(track), staticmethod(note), staticmethod(detail)
    warn, say = staticmethod(warn), staticmethod(say)


PROGRESS = _ConsoleProgress()


def abandon_stdout() -> None:
    """Discard all further output, even at exit: the pipe is broken or the disk is full."""
    silence(stdout())


def flush() -> None:
    """Flush what other code left in the buffer of stdout, such as a help text; raises like `write`."""
    with _writing():
        stdout().flush()


def end() -> None:
    """Flush both streams; a failure does not affect the exit of the process."""
    _BUSY.stop()
    sys.stdout, settings.out = stdout(), None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            silence(stream)


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Write to stdout: raise a broken pipe as it is, any other failure as an error with a hint."""
    _BUSY.stop()
    obey()
    settings.has_output = True
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        abandon_stdout()
        reason = getattr(error, "strerror", None) or str(error)
        raise cannot_write(reason) from error


def cannot_write(reason: str | None) -> CannotRunError:
    """Return the error for a stdout that takes nothing more."""
    from modelscope_cli.shell.parameters import options_of

    has_option = (
        settings.argv[:1] and settings.argv[0] in COMMANDS and "--output" in options_of(settings.argv[0])
    )
    return CannotRunError(f"cannot write: {reason}", "--output FILE" if has_option else "df -h")


@contextlib.contextmanager
def live_line() -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows one line on stderr; None if that is not a terminal or under --quiet."""
    _BUSY.stop()
    with contextlib.nullcontext() if settings.is_quiet else live.live_line() as draw:
        yield draw
