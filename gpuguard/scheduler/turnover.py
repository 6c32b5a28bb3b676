"""Racks in which nodes come free often: long jobs of one node stay out of them, so that others find several at once.

Theory. Nodes come free one by one all over the cluster, and whoever is next takes them. Two that are free in one rack
at one time are rare where there is a queue, and to keep the first idle until a second joins it costs everybody. Where
only jobs run that are over in a day or two, or take many nodes that all come free together, two are soon there. How
many racks that takes follows from how much of the GPU time jobs over several nodes had of late.

Shape   racks whose nodes are alike are one group, and of each group the first racks are turned over. At most a sixth of
        them are, so of every sort of node there are others
"""

from collections.abc import Sequence

import numpy as np

from gpuguard.scheduler.cluster import Cluster, Place
from gpuguard.scheduler.settings import Turning

Kind = tuple[object, ...]
"""What tells racks apart: the sorts of nodes that are in one."""

SLACK = 0.25
"""A rack more or less is a matter of so much more than a rack, so that the number does not flutter."""


NO_TURNING = Turning(share=0.0)


class Past:
    """GPU time of the jobs of a group of racks, in all and over several nodes, decayed as of `at`."""

    __slots__ = ("at", "several", "whole")

    def __init__(self, at: int, whole: float, several: float) -> None:
        self.at = at
        self.whole = whole
        self.several = several

    def decay(self, now: int, half_life: int) -> None:
        if now > self.at:
            left = 0.5 ** ((now - self.at) / half_life)
            self.whole *= left
            self.several *= left
            self.at = now


class Turnover:
    """What is known of the past outlives the cluster; `racks` is how many racks of each group are turned over."""

    def __init__(self, rules: Turning) -> None:
        self._rules = rules
        self._pasts: dict[Kind, Past] = {}
        self._racks: dict[Kind, int] = {}
        self._groups: dict[Kind, list[int]] = {}
        self._of_rack: list[Kind] = []

    def settle(self, cluster: Cluster, now: int) -> None:
        """The cluster is this one now."""
        sorts: list[set[Kind]] = [set() for _ in cluster.by_rack]
        sizes = [0] * len(cluster.by_rack)
        for node, rack in zip(cluster.nodes, cluster.rack.tolist(), strict=True):
            sorts[rack].add(
                (node.pool, node.gpu_type, node.gpus, node.gpu_memory or 0, node.cpus or 0, node.memory or 0)
            )
            sizes[rack] += node.gpus
        self._of_rack = [tuple(sorted(sort, key=repr)) for sort in sorts]
        self._groups = {}
        for rack, kind in enumerate(self._of_rack):
            self._groups.setdefault(kind, []).append(rack)
        for kind, racks in self._groups.items():
            if kind not in self._pasts:
                guess = float(sum(sizes[rack] for rack in racks) * self._rules.half_life)
                self._pasts[kind] = Past(now, guess, guess * self._rules.expected)
            if kind not in self._racks:
                self._racks[kind] = min(int(self._wanted(kind, len(racks))), int(self._rules.most * len(racks)))
        self._mark(cluster)

    def ended(self, cluster: Cluster, places: Sequence[Place], several: bool, ran: int, now: int) -> None:
        """A job has left these places after so many seconds."""
        if not self._rules.share:
            return
        racks = cluster.rack
        for place in places:
            past = self._pasts[self._of_rack[racks[place.node]]]
            past.decay(now, self._rules.half_life)
            spent = place.mask.bit_count() * place.milli / 1000 * ran
            past.whole += spent
            past.several += spent if several else 0.0

    def turn(self, cluster: Cluster, grows: bool) -> bool:
        """So many racks as it takes by now; `grows`: there may be more of them. Whether that changed anything."""
        changed = False
        for kind, racks in self._groups.items():
            wanted, have, most = self._wanted(kind, len(racks)), self._racks[kind], int(self._rules.most * len(racks))
            more, fewer = min(int(wanted - SLACK), most), min(int(wanted + SLACK), most)
            after = more if more > have and grows else min(have, fewer)
            changed |= after != have
            self._racks[kind] = after
        if changed:
            self._mark(cluster)
        return changed

    def _wanted(self, kind: Kind, racks: int) -> float:
        past = self._pasts[kind]
        part = past.several / past.whole if past.whole else 0.0
        return self._rules.share * part * racks

    def _mark(self, cluster: Cluster) -> None:
        turned = [rack for kind, racks in self._groups.items() for rack in racks[: self._racks[kind]]]
        cluster.turn(np.isin(cluster.rack, turned))
