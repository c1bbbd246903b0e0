"""Resolve `--target`, including the reference output of `similar:FILE`."""

from dataclasses import replace

from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import TargetSpec, parse_aim
from modelscope_cli.analysis.subject import Subject, open_for
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.python_inputs import PythonInputs
from modelscope_cli.records.progress import SILENT


def resolve_aim(typed: str, subject: Subject) -> TargetSpec:
    """Parse a target; the file of `similar:FILE` is prepared as the images are, and the model run on it."""
    aim = parse_aim(typed)
    if aim.kind != "similar":
        return aim
    request = replace(subject.given.request, files=(aim.name,), shapes=(), batch=None)
    loaded = subject.loaded
    batch = next(iter(open_for(PythonInputs(request), loaded, SILENT)))
    with HookSession(loaded.module) as session:
        answer = OutputReader.of(loaded).read(session.run(batch.args), batch.args, batch.n_images)
    return replace(aim, reference=answer.main.tensor().detach().flatten())
