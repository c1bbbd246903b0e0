"""The console scripts and `python -m modelscope_cli`."""

import sys


def main() -> None:
    from modelscope_cli.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
