"""The wiring is not what it should be: something is missing, narrower, farther, or in another place.

What should be comes from the file that the site learned, else from the profile of the machine's kind; a machine without
either is judged by nothing. Other checks see some of these faults as well and say what is to be done; this one says
what differs, and never asks for more than a look. Of what nobody knows now, what was said stays.

Reads     the wiring of GPUs, network cards and bridges, of sources topology, pcie and nvml; topology_learned and
          machine_profile of the node, with what the site's settings expect; performance_state, utilization_ratio and
          PCIe traffic of each GPU, for its speed under load
Source    NVSentinel and DCGM compare with a baseline as well; the profiles of rules/topology/ have a source each;
          open-gpu-kernel-modules, kernel_nvlink.c: without an address in the fabric a GPU has no P2P through switches
Clears    when it is as it should be, when nobody expects it any more, a reboot, a new part, or by a person
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.errors import ConfigInvalid
from gpuguard.model.findings import Blame, Finding, Remedy
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.topology import Difference
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held
from gpuguard.topology.build import build as build_graph
from gpuguard.topology.drift import NEWS, Verdict, judge
from gpuguard.topology.profiles import Expected, expect, parse

# What the node's row has as soon as somebody looked for a learned file, and for the machine's kind.
LEARNED = ("topology_learned", "topology_changed_total")
KIND = ("gpus_on_bus", "machine_profile")
UNTOLD = "what was learned is not known now, as the source topology does not tell; see `gpuguard status`"
SPEED, P2P = "pcie_speed", "p2p"
BLAME: dict[str, Blame] = {
    "gpu_missing": "hardware", "nvlinks": "hardware", "pcie_width": "hardware", "pcie_speed": "hardware",
    "nic_missing": "hardware", "acs": "configuration", "numa": "configuration", "nic_moved": "configuration",
    "gpu_swapped": "configuration", "gpu_moved": "configuration", "unexpected": "configuration",
}  # fmt: skip
REMEDY: dict[str, Remedy] = {"nvlinks": "test", "pcie_width": "test", "pcie_speed": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long something must be so, and what load is."""

    hold: Seconds = Seconds(120.0)  # after a driver was loaded anew its GPUs and their links come up one by one
    p2p_hold: Seconds = Seconds(900.0)  # it is asked every ten minutes, and denied until NVSwitches are set up
    looks: int = 5  # at a slow link of a GPU at work, in a row
    apart: Seconds = Seconds(30.0)  # looks closer than this count as one
    traffic: float = 1e8  # bytes a second over PCIe are work, also where no kernel runs

    def __post_init__(self) -> None:
        if min(self.hold, self.p2p_hold) < 0:
            raise ValueError("hold and p2p_hold must not be negative")
        if self.looks < 1:
            raise ValueError("looks must be at least 1")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A difference, since when it has been seen, and of a slow link at how many looks."""

    kind: str
    subject: SubjectId
    held: Held = Held()
    looks: int = 0
    looked: Instant | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What differed at the last look, or did when anybody could tell last; whether it was compared with what the site
    learned, and since when nobody tells of that."""

    seen: tuple[Seen, ...] = ()
    learned: bool = False
    untold: Held = Held()


class TopologyDrift:
    """Reports what differs between how the node is wired and how it should be."""

    name = "topology_drift"
    of: tuple[SubjectKind, ...] = ("node", "gpu", "mig", "nic", "nvswitch", "bridge")  # what the graph is made of
    reads = (
        "gpu_pci_path", "gpu_numa_node", "nic_pci_path", "bridge_pci_path", "nvlink_peers", "nvlink_up",
        "pcie_link_width", "pcie_link_generation", "common_ancestors", "p2p_read", "machine_profile",
        "topology_learned",
    )  # fmt: skip
    memory = Memory

    def __init__(self, settings: Settings, rules: Rules) -> None:
        self.settings, self._rules = settings, rules
        self._profiles: dict[str, Expected] | None = None

    def start(self) -> Memory:
        return Memory()

    def survey(self, memory: Memory, rows: Mapping[SubjectId, Row]) -> tuple[Memory, Sequence[Finding]]:
        if not rows:
            return memory, ()
        at = next(iter(rows.values())).at
        node = rows[NODE].values if NODE in rows else {}
        told = not node.keys().isdisjoint(LEARNED)
        untold = memory.untold.told(memory.learned and not told, at)
        if untold.since is not None:
            words = [UNTOLD] if untold.lasted(self.settings.hold, at) else []
            return msgspec.structs.replace(memory, untold=untold), (self._profile(at, words),)
        learned = told and bool(str(node.get("topology_learned", "")).strip())
        try:
            # Of a machine whose kind nobody has told yet, as when the agent begins, nothing can be taken back.
            settled = memory.learned or not node.keys().isdisjoint(KIND)
            verdict = self._verdict(rows) or (Verdict() if settled else None)
        except ConfigInvalid as error:
            return msgspec.structs.replace(memory, learned=learned, untold=untold), (self._profile(at, error.mistakes),)
        if verdict is None:
            return memory, (self._profile(at, ()),)
        seen, findings = self._held(memory, verdict, at)
        after = Memory(seen=tuple(seen), learned=learned)
        return (memory if after == memory else after), (self._profile(at, ()), *findings)

    def _verdict(self, rows: Mapping[SubjectId, Row]) -> Verdict | None:
        """What differs; None where nobody knows what should be."""
        values = {name: row.values for name, row in rows.items()}
        if self._profiles is None:
            self._profiles = parse(self._rules.texts("topology"))
        expected = expect(values, self._profiles)
        if expected is None:
            return None
        busy = {name for name, row in rows.items() if kind_of(name) == "gpu" and self._is_busy(row)}
        return judge(build_graph(values), expected, busy)

    def _is_busy(self, row: Row) -> bool:
        utilization = row.number("utilization_ratio") or 0.0
        traffic = sum(row.number(f"pcie_{way}_bytes_per_second") or 0.0 for way in ("tx", "rx"))
        return row.number("performance_state") == 0 and (utilization > 0 or traffic >= self.settings.traffic)

    def _held(self, memory: Memory, verdict: Verdict, at: Instant) -> tuple[list[Seen], list[Finding]]:
        """What is remembered now, and what is said: of each difference whether it stands, and of those that are no
        more that they do not."""
        known: dict[tuple[str, SubjectId], Seen] = {(seen.kind, seen.subject): seen for seen in memory.seen}
        kept: list[Seen] = []
        findings: list[Finding] = []
        for differences in _by_finding(verdict.differences):
            first = differences[0]
            key: tuple[str, SubjectId] = (first.kind, SubjectId(first.subject))
            seen = self._looked(known.pop(key, Seen(kind=key[0], subject=key[1])), at)
            kept.append(seen)
            more = f" (and {len(differences) - 1} more like it)" if len(differences) > 1 else ""
            findings.append(self._finding(*key, at, self._stands(seen, at), f"{first.words}{more}"))
        for key, seen in known.items():  # what is left differs no more, or nobody can tell
            begun = key[0] == SPEED and not self._stands(seen, at)
            if (key in verdict.unknown or kind_of(key[1]) in verdict.unseen) and not begun:
                kept.append(seen)
            else:
                findings.append(self._finding(*key, at, False, ""))
        return kept, findings

    def _looked(self, seen: Seen, at: Instant) -> Seen:
        held = seen.held.told(True, at)
        if seen.kind != SPEED:
            return seen if held is seen.held else msgspec.structs.replace(seen, held=held)
        looks = seen.looks if held is seen.held else 0
        since = None if seen.looked is None else seconds_between(seen.looked, at)
        if looks >= self.settings.looks or (looks and since is not None and since < self.settings.apart):
            return seen
        return msgspec.structs.replace(seen, held=held, looks=looks + 1, looked=at)

    def _stands(self, seen: Seen, at: Instant) -> bool:
        enough = seen.kind != SPEED or seen.looks >= self.settings.looks
        return enough and seen.held.lasted(self.settings.p2p_hold if seen.kind == P2P else self.settings.hold, at)

    def _finding(self, kind: str, subject: SubjectId, at: Instant, stands: bool, reason: str) -> Finding:
        news = kind in NEWS
        return Finding(
            subject=subject, check=self.name, code=f"topology_{kind}", at=at, stands=stands,
            severity="info" if news else "degraded", blame=BLAME.get(kind, "unknown"),
            remedy=REMEDY.get(kind, "none"), advice="none" if news else "watch",
            clears=("reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip

    def _profile(self, at: Instant, mistakes: Sequence[str]) -> Finding:
        """Whether what should be can be read at all; while it cannot, nothing is compared."""
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        return Finding(
            subject=NODE, check=self.name, code="topology_profile", at=at, stands=bool(mistakes), severity="degraded",
            blame="configuration", advice="watch", clears=("ack",),
            reason=f"the wiring is compared with nothing: {mistakes[0]}{more}" if mistakes else "",
        )  # fmt: skip


def _by_finding(differences: Sequence[Difference]) -> Iterator[list[Difference]]:
    """The differences of one kind and one subject together: they are one finding."""
    found: dict[tuple[str, str], list[Difference]] = {}
    for one in differences:
        found.setdefault((one.kind, one.subject), []).append(one)
    yield from found.values()


def build(settings: Settings, rules: Rules) -> TopologyDrift:
    """The detector with a site's settings and the profiles of rules/topology/."""
    return TopologyDrift(settings, rules)
