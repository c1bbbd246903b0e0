"""Which of several processes this is, as torchrun starts them, and what they tell one another. Standard library.

They meet in one `TCPStore`, which torchrun keeps for them: counters and short words. No process group is made and
no collective is called, so that nobody waits for anybody who has gone.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

Store = Any  # of torch.distributed, which says nothing of types
_PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which process this is, of how many.

    Attributes:
        local_rank, local_world: the same among those on this machine.
        attempt: how often torchrun has started all of them anew.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    attempt: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def is_started_by_torchrun() -> bool:
    """Tell whether this is one of the processes that torchrun starts, be it the only one."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def find_ranks() -> Ranks:
    """Return what torchrun says; one process of one where it did not start us."""
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
    """Return the store that all processes of this run write to and read from; each start has words of its own."""
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
    """Tell whether no other process has told of an error yet, so that one and the same is said once."""
    if not is_started_by_torchrun():
        return True
    try:
        return meeting_place().add("failed", 1) == 1
    except Exception:  # nobody keeps a store: then it is better said twice than not at all
        return True
