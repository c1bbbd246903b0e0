"""The console scripts and `python -m modelscope_cli`."""

import sys


def main() -> None:
    try:
        from modelscope_cli.shell.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # before `run` could catch it
        sys.exit(130)


if __name__ == "__main__":
    main()
