"""`attack`: the public function."""

from collections.abc import Sequence
from typing import Any, Unpack

from modelscope_cli.analysis.attack import on_image
from modelscope_cli.analysis.attack.request import make_request
from modelscope_cli.analysis.outputs.target_spec import parse_aim
from modelscope_cli.analysis.subject import Subject, seed_of
from modelscope_cli.inputs.python_inputs import to_inputs
from modelscope_cli.models.request import Model
from modelscope_cli.records.attack import AttackRecord, KeptImages
from modelscope_cli.records.keywords import OutputKeywords, spelled_out, texts
from modelscope_cli.records.progress import Progress, counting

_RUNS = 15  # typical number of searches of a bisection over epsilon, for the image and for the file


@spelled_out
def attack(
    model: "Model" = "resnet34",
    inputs: Any = None,
    *,
    method: str = "pgd",
    norm: str = "linf",
    epsilon: str | float | None = None,
    steps: int | None = None,
    target: str | int | None = None,
    hook: str | Sequence[str] = (),
    progress: Progress | None = None,
    **keywords: Unpack[OutputKeywords],
) -> AttackRecord:
    """Find a minimal perturbation of an image that fools a model, and check it again as an 8-bit file.

    The gradient is taken with respect to the pixels the model sees, before normalisation. The model has to output
    scores of classes.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        inputs: one image: a path or a PIL image.
        method: fgsm: one step along the sign of the gradient; ifgsm: several smaller steps; pgd: the same from a
            random start.
        norm: the norm that epsilon bounds: linf, the change of every value; l2, the length of the whole
            perturbation.
        epsilon: the size of the perturbation, with pixels in 0..1: stop at the first image that fools the model.
            Without it, find the smallest.
        steps: number of gradient steps.
        target: the class to reach, an index or a label; without it, any but the predicted one.
        hook: changes to values during the pass, in the syntax of `--hook`.

    Raises:
        UsageError: a keyword, a class or a combination that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be loaded, raises an error or cannot be differentiated, or a file cannot be
            read or written (exit 4).
    """
    request = make_request(
        method=method,
        norm=norm,
        epsilon=texts(epsilon),
        steps=steps,
        target=texts(target),
        seed=seed_of(model, keywords),
    )
    python_inputs = to_inputs(inputs, keywords)
    python_inputs.request.check_one()
    subject = Subject(
        "attack", model, python_inputs, keywords, hook=hook, has_backward=True, progress=progress
    )
    loaded = subject.loaded
    on_image.check_model(loaded)
    subject.open()
    on_image.check_inputs(subject.inputs, python_inputs.name)
    interventions = subject.bind().interventions
    n_steps = request.steps + 1
    if request.is_smallest:
        subject.progress.note(
            f"the smallest perturbation: about {_RUNS} searches of at most {n_steps} steps each; --epsilon E "
            "is one search"
        )
        n_steps *= _RUNS
    with counting(subject.progress, "steps", n_steps) as tick:
        aim = None if request.target is None else parse_aim(request.target)
        attacked = on_image.attack_image(loaded, subject.inputs, request, tick, interventions, aim)
    if attacked.note is not None:
        subject.progress.note(attacked.note)
    hooks = subject.conclude()
    back = on_image.encode_and_reread(loaded, subject.inputs, attacked.found, interventions)
    subject.tell_if_degenerate(attacked.degenerate)
    subject.warn(on_image.notices(attacked, back, request))
    record = AttackRecord(
        run=subject.run(),
        image=(python_inputs.request.files or subject.inputs.info.files)[0],
        out_dir=None,
        files=(),
        hooks=hooks,
        **on_image.describe(attacked, back, request, loaded.categories),
    )
    return record.keep(KeptImages(attacked.levels, back.levels, back.png))
