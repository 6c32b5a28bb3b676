"""Jobs of 80, 8 and 20 GB on two cards of 80."""

from collections.abc import Sequence
from itertools import permutations

from gpuguard.scheduler.settings import HOUR
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced
from gpuguard.simulator.trace import TraceJob

ID = "B3.2b"
CLAIM = "A card for 80 GB and one for 8 GB waste 72 GB; 8 and 20 GB on one card and 80 alone is better."
CLAIMED = "72 GB wasted; 8 with 20 GB on one card, 80 alone"
NEEDS = ()

GB = 1024
CARD = 80
WISHES = (("80", 80), ("8", 8), ("20", 20))


def measure(given: Given) -> Finding:
    """Whole cards for all; and small ones on a part of a card; in every order of coming."""
    whole = [_run(given, order, shares=False) for order in permutations(WISHES)]
    shared = [_run(given, order, shares=True) for order in permutations(WISHES)]
    claimed = _run(given, WISHES, shares=False)
    return Finding(
        measured={
            "whole_cards": claimed, "parts_of_cards": _run(given, WISHES, shares=True),
            "orders": {
                "whole_cards_all_start": sum(run["waiting"] == [] for run in whole),
                "parts_all_start": sum(run["waiting"] == [] for run in shared),
                "parts_small_ones_together": sum(bool(run["small_ones_together"]) for run in shared),
                "of": len(shared),
            },
        },
        assumptions=(
            "two cards of 80 GB on one node; each job takes an hour, one comes a second after the other",
            "the 80 GB job is training; the small ones are batch and say what memory they need, and 0.3 of a card",
        ),
    )  # fmt: skip


def _run(given: Given, order: Sequence[tuple[str, int]], *, shares: bool) -> dict[str, object]:
    jobs = [_job(name, memory, at, shares=shares) for at, (name, memory) in enumerate(order)]
    what = f"{' '.join(name for name, _ in order)} GB, {'parts' if shares else 'whole cards'}"
    engine = play(given, what, cluster(1, 2, gpu_memory=CARD * GB), jobs, policies()["gpuguard"])
    cards = {name: _card(engine, name) for name, _ in order}
    waiting = [name for name, card in cards.items() if card is None]
    held = {name: memory for name, memory in order if cards[name] is not None}
    used = len({cards[name] for name in held})
    return {
        "cards": cards, "waiting": sorted(waiting), "wasted_gb": CARD * used - sum(held.values()),
        "small_ones_together": cards["8"] is not None and cards["8"] == cards["20"],
    }  # fmt: skip


def _job(name: str, memory: int, at: int, *, shares: bool) -> TraceJob:
    if memory < CARD and shares:
        return traced(name, at, HOUR, 1, tier="batch", gpu_milli=300, gpu_memory=memory * GB)
    return traced(name, at, HOUR, 1, gpu_memory=memory * GB)


def _card(engine: Engine, name: str) -> int | None:
    """Which card the job got when all had come; None: it waits."""
    first = engine.lives[name].record.segments[0]
    return first.shares[0].mask.bit_length() - 1 if first.start <= len(WISHES) else None


def judge(measured: Measured) -> Sequence[Row]:
    """By hand, and whatever comes first."""
    whole, parts, orders = measured["whole_cards"], measured["parts_of_cards"], measured["orders"]
    return (
        Row(
            "whole cards: wasted; waiting", "72 GB; the 20 GB job",
            f"{whole['wasted_gb']} GB; {', '.join(whole['waiting']) or 'nobody'}",
            whole["wasted_gb"] == 72 and whole["waiting"] == ["20"],
        ),
        Row(
            "parts: 8 and 20 GB on one card, all run", "yes", "yes" if parts["small_ones_together"] else "no",
            bool(parts["small_ones_together"]) and not parts["waiting"],
        ),
        Row(
            "parts: all run at once, of orders of coming", str(orders["of"]), str(orders["parts_all_start"]),
            orders["parts_all_start"] == orders["of"],
        ),
    )  # fmt: skip
