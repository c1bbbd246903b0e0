"""The console scripts and `python -m modelscope_cli`."""


def main() -> None:
    from modelscope_cli import interrupts

    interrupts.end_at_once()  # first, as the imports below are slow
    import atexit
    import os
    import sys

    from modelscope_cli.shell.app import run

    code: int | None = None
    # The first to be registered is the last to be called.
    atexit.register(lambda: interrupts.last_words(code))
    try:
        interrupts.raise_signals()
        code = run(sys.argv[1:])
        interrupts.end_at_once()
    except KeyboardInterrupt:  # raised just before or after `run`
        code = interrupts.INTERRUPTED
    except interrupts.Terminated as ended:
        code = ended.code
    if "RANK" in os.environ:  # one of several processes, as torchrun starts them
        from modelscope_cli.watching.process_exit import leave

        leave(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
