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
    if sys.argv[1:2] != ["watch"] and not sys.warnoptions:  # a script that is watched says what it says alone
        _leave_out_deprecations()
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


# Whose code calls what is deprecated: only their authors can change it.
_LIBRARIES = (
    r"(torch|torchvision|timm|transformers|huggingface_hub|lightning|pytorch_lightning|onnxruntime)(\.|$)"
)


def _leave_out_deprecations() -> None:
    """Ignore what libraries do that is deprecated in other libraries; the user's own code is warned as always."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning, module=_LIBRARIES)
    warnings.filterwarnings("ignore", r"(?s).*\bdeprecated\b", UserWarning, module=_LIBRARIES)


if __name__ == "__main__":
    main()
