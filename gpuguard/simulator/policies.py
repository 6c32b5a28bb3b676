"""The policies that a trace can be run with, as settings of the one core: first come first served, EASY, and ours.

A trace knows no limits of queues, so none are set: a job whose walltime was guessed too long is not refused for it.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.scheduler.settings import Pool, Queue, Settings

PACK: Literal["pack"] = "pack"
SPREAD: Literal["spread"] = "spread"


def _plain(placement: Literal["pack", "spread"], reservations: int, backfill: bool) -> Settings:
    pool = Pool(placement=placement, terms=("spread",) if placement == SPREAD else ("tight",))
    return Settings(
        key="fifo", reservations=reservations, backfill=backfill, topology=False,
        pools={"training": pool, "interactive": pool}, queues=unlimited(Settings()),
    )  # fmt: skip


def unlimited(settings: Settings) -> Mapping[str, Queue]:
    """The queues without their limits."""
    return {name: msgspec.structs.replace(queue, limit=None, gpus=None) for name, queue in settings.queues.items()}


def policies() -> dict[str, Settings]:
    """By name.

    Shape   fifo: strictly in order of submit. easy: the same, and a later job may start if it does not move the first
            one's start. spread: on the emptiest nodes; pack: on the fullest. gpuguard: as it ships
    """
    ours = Settings()
    return {
        "fifo-spread": _plain(SPREAD, 0, False),
        "fifo-pack": _plain(PACK, 0, False),
        "easy-pack": _plain(PACK, 1, True),
        "easy-spread": _plain(SPREAD, 1, True),
        "gpuguard": msgspec.structs.replace(ours, queues=unlimited(ours)),
    }
