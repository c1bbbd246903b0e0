"""The options of `explain`, checked before anything heavy is imported. Standard library."""

import re

from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import NONE, PASSED, QUICK, RECEIPTS
from modelscope_cli.records.refusals import check_word

AUTO, ALL = "auto", "all"
# Of `explaining.methods`, which imports torch.
METHOD_NAMES = ("hirescam", "gradcam", "saliency", "input-x-gradient", "integrated-gradients", "occlusion")
# Cheap and complementary: contributions of a layer's cells and of the pixels. One that does not fit is omitted.
_OF_AUTO = ("hirescam", "integrated-gradients")


def choose_methods(method: str) -> tuple[str, ...]:
    """Return the methods of `auto`, `all` or a list of names."""
    meanings = {_letters(name): (name,) for name in METHOD_NAMES} | {AUTO: _OF_AUTO, ALL: METHOD_NAMES}
    parts = [part.strip() for part in method.split(",") if part.strip()]
    for part in parts or [method]:
        if _letters(part) not in meanings:
            check_word("method", part, (AUTO, ALL, *METHOD_NAMES))
    return tuple(dict.fromkeys(name for part in parts for name in meanings[_letters(part)]))


def receipt_kind(receipt: str | bool) -> str:
    """Return `quick` or `none`; True is the default, False none."""
    if isinstance(receipt, bool):
        return QUICK if receipt else NONE
    check_word("receipt", receipt, RECEIPTS)
    return receipt


def check_requirement(require: str | None, kind: str) -> None:
    """Refuse a requirement other than `passed`, and one without a receipt."""
    if require is None:
        return
    check_word("require", require, (PASSED,))
    if kind == NONE:
        raise UsageError("--require needs the receipt", "leave out --receipt none")


def _letters(name: str) -> str:
    """Normalise a name, so that `Grad-CAM`, `grad_cam` and `GradCAM` are equal."""
    return re.sub("[-_ ]", "", name.lower())
