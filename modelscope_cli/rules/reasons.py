"""Say why each rule matters and how to silence it, for `modelscope rules CODE`."""

# By code: the consequences of the fault that the rule's own sentence describes.
WHY = {
    "MS771": "a device that waits does nothing, and the run takes that much longer",
    "MS772": "most of the time goes into measuring the model instead of training it",
    "MS773": "compiling and starting workers only pay off in a longer run",
    "MS774": "an accelerator is quick only while its queue is filled, and reading a result empties it",
    "MS775": "a long run ends out of memory, or slows down when the machine begins to swap",
    "MS776": "all ranks take as long as the slowest, however many there are",
}
_BUDGETS, _TRAINING = "MS5", "MS7"


def how_to_silence(code: str, name: str) -> str:
    """Return what to do if the finding is intended."""
    if code.startswith(_TRAINING):
        return "watch and train fail only with --fail-on, and --fail-on error lets warnings pass"
    if code.startswith(_BUDGETS):
        return f"leave out --{name}: a budget that is not set is not judged"
    if code == "MS201":
        return (
            "--baseline known.json --update-baseline accepts today's findings as known; a forward pass that "
            "is not finite always fails"
        )
    return (
        f'--ignore {code}, or ignore = ["{code}"] in [tool.modelscope] of pyproject.toml; '
        "--baseline known.json --update-baseline accepts today's findings as known"
    )
