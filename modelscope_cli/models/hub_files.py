"""Files of the Hugging Face hub: from its own cache, else downloaded by its own library."""

from collections.abc import Sequence
from pathlib import Path

from modelscope_cli.models.pretrained import WeightsUnavailableError
from modelscope_cli.models.request import ModelRequest


def fetch(repository: str, files: Sequence[str], request: ModelRequest) -> tuple[Path, str]:
    """Return the first of `files` that a repository has, and whether it came from the `cache` or a `download`.

    Args:
        repository: `owner/name`, or `owner/name@revision`.

    Raises:
        WeightsUnavailableError: not in the cache, and offline or no network; or the repository has none (exit 4).
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    name, _, revision = repository.partition("@")
    for file in files:
        cached = try_to_load_from_cache(name, file, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached), "cache"
    reason = "offline and not in the cache"
    for file in () if request.is_offline else files:
        (enable_progress_bars if request.progress else disable_progress_bars)()
        try:
            return Path(hf_hub_download(name, file, revision=revision or None)), "download"
        except (
            Exception
        ) as error:  # of the network, the hub, the disk: all say what is wrong in their first line
            reason = f"download failed, {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    raise WeightsUnavailableError(
        f"weights '{repository}' cannot be had: {reason}", f"hf download {name} or --weights none"
    )
