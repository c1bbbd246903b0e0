"""How often is the verdict of `modelscope watch` right? Runs labelled trainings and prints a table.

    python tests/verdict/run.py --half dev
    python tests/verdict/run.py --half dev --only no_zero_grad --only plain
    python tests/verdict/run.py --truth     what the trainings do with nobody looking on

The half `final` is for the final measurement: only its table is printed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from bench import Answer, run_all
from programs.registry import HALVES, Program, load
from table import table


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES, help="both where it is not said")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="in the name or the kind")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="added to the seed of every program")
    parser.add_argument(
        "--show", action="store_true", help="name the wrong answers of the half 'final' as well"
    )
    parser.add_argument("--truth", action="store_true", help="run without modelscope; show losses and scores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer to a file")
    options = parser.parse_args()
    programs = [one for one in load(options.half) if _is_meant(one, options.only)]
    if not programs:
        parser.error(f"no program whose name or kind holds {' or '.join(options.only)}")
    if options.truth:
        return _show_truth(programs, options.seed)
    began = time.perf_counter()
    answers: list[Answer] = []
    for answer in run_all(programs, options.jobs, options.seed):
        answers.append(answer)
        if sys.stderr.isatty():
            print(f"\r{len(answers)} of {len(programs)} ", end="", file=sys.stderr, flush=True)
    shown = [one for one in answers if not one.is_right and (options.show or one.program.half != "final")]
    for answer in sorted(shown, key=lambda one: (one.program.kind, one.program.name)):
        print(answer.line())
    print(f"\n{table(answers)}\n\n{len(answers)} trainings in {time.perf_counter() - began:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps([one.to_dict() for one in answers], indent=1))
    return 0


def _is_meant(program: Program, only: list[str]) -> bool:
    return not only or any(text in program.name or text in program.kind for text in only)


def _show_truth(programs: list[Program], shift: int) -> int:
    """Print what happens without `watch`; 1 where a label is wrong. Programs of several ranks are left out."""
    from truth import find_truth

    print(f"{'kind':34} {'name':34}{'steps':>5} {'loss from':>9} {'to':>9} {'score':>7} {'time':>7}")
    truths = [find_truth(one, shift) for one in programs if one.ranks == 1]
    for truth in truths:
        print(truth.row())
    return 0 if all(truth.is_labelled_right for truth in truths) else 1


if __name__ == "__main__":
    sys.exit(main())
