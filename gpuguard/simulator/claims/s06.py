"""GPUs of one job that lie far apart, chosen without a look at the wiring or with one."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.plan import Share, Start
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, ratio, shown
from gpuguard.simulator.engine import Life, Model, World
from gpuguard.simulator.models import far
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mix, play
from gpuguard.simulator.trace import TraceJob

ID = "S6"
CLAIM = "A job whose GPUs lie across sockets or switches runs far slower, and a choice by the wiring avoids it."
CLAIMED = "2 GPUs far apart: 40 % in communication, half the speed; up to 3 times"
NEEDS = ()

NODES, SPAN, LOAD = 16, 4 * DAY, 0.8
SIZES = ((1, 0.35), (2, 0.30), (4, 0.15), (8, 0.10), (16, 0.07), (32, 0.03))
PACES = (0.8, 0.6, 0.5, 1 / 3)
"""Speed across sockets, switches and pods; what lies between near and that costs half as much."""
SOCKETS = (0x0F, 0xF0)
TALKS, HALF = 0.40, 0.5
OFTEN, SELDOM = 0.10, 0.02


class Numbered(Model):
    """The cards of each node lie in an order that their numbers do not tell.

    Shape   starts: (GPUs, speed, a pair was free that is nearer) of each
    """

    name = "numbered"
    loses = "far"

    def __init__(self, cost: Model, order: dict[str, list[int]]) -> None:
        self._cost = cost
        self._order = order
        self.starts: list[tuple[int, float, bool]] = []

    def speed(self, world: World, life: Life, decision: Start) -> float:
        """As the cards lie."""
        shares = tuple(self._as_they_lie(share) for share in decision.shares)
        pace = self._cost.speed(world, life, msgspec.structs.replace(decision, shares=shares))
        nearer = life.job.gpus == 2 and pace < 1.0 and self._pair_left(world, decision)
        self.starts.append((life.job.gpus, pace, nearer))
        return pace

    def _pair_left(self, world: World, decision: Start) -> bool:
        """Two GPUs of one socket are free somewhere, or were before this start."""
        cluster = world.state.cluster
        for node, free in zip(cluster.names, cluster.free, strict=True):
            given = sum(share.mask for share in decision.shares if share.node == node)
            lying = self._as_they_lie(Share(node, int(free) | given, 1000, 0, 0)).mask
            if any((lying & socket).bit_count() >= 2 for socket in SOCKETS):
                return True
        return False

    def _as_they_lie(self, share: Share) -> Share:
        order = self._order.get(share.node)
        if order is None:
            return share
        mask = sum(1 << order[gpu] for gpu in range(len(order)) if share.mask >> gpu & 1)
        return msgspec.structs.replace(share, mask=mask)


def measure(given: Given) -> Finding:
    """The same jobs with both choices, by what distance costs."""
    jobs = mix(
        given.dice, capacity=8 * NODES, load=LOAD, span=SPAN, sizes=SIZES, mean=2.0 * HOUR, median=30.0 * MINUTE,
        longest=DAY,
    )  # fmt: skip
    order = {node.node: _shuffled(given.dice) for node in cluster(NODES)}
    sweep = []
    for pace in PACES:
        blind, seeing = (_run(given, jobs, pace, order if by == "numbers" else None) for by in ("numbers", "wiring"))
        sweep.append({
            "speed_far": round(pace, 3), "by_numbers": blind, "by_wiring": seeing,
            "two_gpus_faster": ratio(seeing["speed_2_gpus"], blind["speed_2_gpus"], 3),
            "several_nodes_faster": ratio(seeing["speed_several_nodes"], blind["speed_several_nodes"], 3),
        })  # fmt: skip
    return Finding(
        measured={"least_speed_by_communication": round(1.0 - TALKS, 2), "sweep": sweep},
        assumptions=(
            f"{NODES} nodes of 8 in racks of 4 and pods of 8, load {LOAD}; two GPUs a switch, four a socket",
            "by numbers: the lowest free numbers, which say nothing of the place, and any nodes; by wiring: as gpuguard"
            " ships",
            "what distance costs is assumed, hence the sweep: speed across sockets, pods and on more nodes than need"
            " be; half the loss on one socket and in one pod",
            f"a job that spends {TALKS:.0%} of its time in communication would run at {1 / (1 - TALKS):.2f} times the"
            " speed if that took none at all",
        ),
    )


def _shuffled(dice: Dice) -> list[int]:
    left = list(range(8))
    return [left.pop(dice.randrange(len(left))) for _ in range(8)]


def _run(given: Given, jobs: Sequence[TraceJob], pace: float, order: dict[str, list[int]] | None) -> dict[str, float]:
    cost = far.build(_costs(pace), given.dice)
    model = Numbered(cost, order or {})
    settings = policies()["gpuguard"]
    if order is not None:
        settings = msgspec.structs.replace(settings, topology=False)
    wiring = None if order is not None else two_sockets(8)
    what = f"{'by numbers' if order is not None else 'by wiring'}, far {pace:.2f}"
    # Walltimes are asked with the loss in mind, in both.
    asked = [
        msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, walltime=4 * max(60, one.duration_s or 0)))
        for one in jobs
    ]
    play(given, what, cluster(NODES, rack=4, pod=8, placement=wiring), asked, settings, models=[model])
    pairs = [speed for gpus, speed, _ in model.starts if gpus == 2]
    wide = [speed for gpus, speed, _ in model.starts if gpus > 8]
    avoidable = sum(nearer for _, speed, nearer in model.starts if speed <= pace + 1e-9)
    return {
        "far_share_2_gpus": round(sum(speed <= pace + 1e-9 for speed in pairs) / max(1, len(pairs)), 4),
        "far_though_nearer_free_share": round(avoidable / max(1, len(pairs)), 4),
        "speed_2_gpus": _mean(pairs),
        "speed_several_nodes": _mean(wide),
    }


def _costs(pace: float) -> dict[str, str]:
    between = (1.0 + pace) / 2
    return {
        "sockets": f"{pace}", "socket": f"{between}", "core": f"{pace}", "pod": f"{between}", "nodes": f"{pace}",
        "least": f"{pace}",
    }  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 1.0


def judge(measured: Measured) -> Sequence[Row]:
    """How often it happens under both choices, what that costs at half the speed, and whether the figures agree."""
    half = next(row for row in measured["sweep"] if row["speed_far"] == HALF)
    blind, seeing = half["by_numbers"], half["by_wiring"]
    least = measured["least_speed_by_communication"]
    gains = [row["two_gpus_faster"] for row in measured["sweep"]]
    return (
        Row(
            "pairs across sockets, chosen by numbers", "it happens", _percent(blind["far_share_2_gpus"]),
            blind["far_share_2_gpus"] >= OFTEN,
        ),
        Row(
            "by wiring: pairs across sockets while a nearer one is free", "none",
            f"{_percent(seeing['far_though_nearer_free_share'])} of {_percent(seeing['far_share_2_gpus'])}",
            seeing["far_though_nearer_free_share"] <= SELDOM,
        ),
        Row(
            "speed of a pair that is 40 % in communication", "half", f"{least:.1f} at the least", least <= HALF,
        ),
        Row(
            "all pairs faster by wiring, by cost", "some",
            f"{shown(min(gains), '', 2)} to {shown(max(gains), ' times', 2)}", min(gains) > 1.0,
        ),
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
