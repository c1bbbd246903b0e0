"""How often is the verdict of a tool right? Has labelled trainings judged and prints a table.

    python tests/bench/verdict/run.py --part dev                       modelscope watch
    python tests/bench/verdict/run.py --part dev --only no_zero_grad --only plain
    python tests/bench/verdict/run.py --part final --tool loss_threshold
    python tests/bench/verdict/run.py --part final --tool "my-tool --strict"
    python tests/bench/verdict/run.py --truth                          what the trainings do with no tool

The parts `final` and `fourth apart` are for the final measurement: only their tables are printed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from bench import Answer, Program, judge_all, load
from score import table

KEPT_APART = ("final", "fourth apart")


def main() -> int:
    every = load()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", choices=sorted({one.part for one in every}), help="all where it is not said"
    )
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="in the name or the kind")
    parser.add_argument("--tool", default="watch", help="a file of adapters/, or a command line (README.md)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="added to the seed of every program")
    parser.add_argument(
        "--show", action="store_true", help="name the wrong answers of 'final' and 'fourth apart' as well"
    )
    parser.add_argument("--truth", action="store_true", help="run without a tool; show losses and scores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer to a file")
    options = parser.parse_args()
    programs = [one for one in every if options.part in (None, one.part) and _is_meant(one, options.only)]
    if not programs:
        parser.error(f"no program whose name or kind holds {' or '.join(options.only)}")
    if options.truth:
        return _show_truth(programs, options.seed)
    began = time.perf_counter()
    answers: list[Answer] = []
    for answer in judge_all(programs, options.tool, options.jobs, options.seed):
        answers.append(answer)
        if sys.stderr.isatty():
            print(f"\r{len(answers)} of {len(programs)} ", end="", file=sys.stderr, flush=True)
    answers.sort(key=lambda one: programs.index(one.program))
    for answer in answers:
        if not answer.is_right and (options.show or answer.program.part not in KEPT_APART):
            print(answer.line())
    print(f"\n{table(answers)}\n\n{len(answers)} trainings in {time.perf_counter() - began:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps([one.to_dict() for one in answers], indent=1))
    return 0


def _is_meant(program: Program, only: list[str]) -> bool:
    return not only or any(text in program.name or text in program.kind for text in only)


def _show_truth(programs: list[Program], shift: int) -> int:
    """Print what happens without a tool; 1 where a label is wrong."""
    from truth import can_be_measured, find_truth

    print(f"{'kind':34} {'name':34}{'steps':>5} {'loss from':>9} {'to':>9} {'score':>7} {'time':>7}")
    truths = [find_truth(one, shift) for one in programs if can_be_measured(one)]
    for truth in truths:
        print(truth.row())
    return 0 if all(truth.is_labelled_right for truth in truths) else 1


if __name__ == "__main__":
    sys.exit(main())
