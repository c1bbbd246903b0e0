"""Rank of this process under torchrun, and the store shared by all ranks. Standard library.

Ranks share torchrun's `TCPStore`: counters and short strings. No process group and no collectives are used, so no
rank waits for one that has ended.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

Store = Any  # of torch.distributed, which is untyped
_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank of a process and number of processes."""

    rank: int = 0
    world: int = 1
    # local_rank, local_world: the same on this machine
    local_rank: int = 0
    local_world: int = 1
    attempt: int = 0  # how often torchrun has restarted the run

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def is_started_by_torchrun() -> bool:
    """Tell whether torchrun started this process, even as the only one."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def find_ranks() -> Ranks:
    """Return the ranks set by torchrun; rank 0 of 1 without torchrun."""
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return Ranks(rank, world, local_rank, local_world, attempt)
    except (KeyError, ValueError):
        return Ranks()


@cache
def meeting_place() -> Store:
    """Return the store shared by all processes of this run, with keys of its own for each restart."""
    from torch import distributed

    ranks = find_ranks()
    is_kept_for_us = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = distributed.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=ranks.is_first and not is_kept_for_us,
        timeout=_PATIENCE,
        wait_for_workers=False,
    )
    words_of = f"modelscope/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{ranks.attempt}"
    return distributed.PrefixStore(words_of, store)  # type: ignore[attr-defined]


def is_first_to_fail() -> bool:
    """Tell whether no other process has reported an error yet, so that it is printed once."""
    if not is_started_by_torchrun():
        return True
    try:
        return meeting_place().add("failed", 1) == 1
    except Exception:  # without a store, printing it twice is better than not at all
        return True
