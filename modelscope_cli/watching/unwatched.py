"""Processes of a training that nobody watches, because the script started them itself."""

import torch

from modelscope_cli.records.naming import some


def unwatched_ranks(script: str, n_watched: int) -> str | None:
    """Say which ranks of torch's process group are not watched; None where all are, or there is no group.

    Args:
        script: with its arguments, as typed.
        n_watched: processes that were started under `watch`.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    own, n = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if n <= n_watched:
        return None
    others = [str(rank) for rank in range(n) if rank != own]
    if n_watched > 1:
        which = f"{n - n_watched} of {n} ranks are not watched, as the script started them itself"
    elif len(others) == 1:
        which = f"rank {others[0]} of {n} is not watched, as the script started it itself"
    else:
        which = f"ranks {some(others)} of {n} are not watched, as the script started them itself"
    return (
        f"{which}; this watches all of them: torchrun --nproc-per-node {n} -m modelscope_cli watch {script}"
    )
