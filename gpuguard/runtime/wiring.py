"""The wiring of a machine for whoever asks, and what it should be: of this one, a recorded one, or from a matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuguard.errors import Absent, ConfigInvalid, NotUnderstood, UsageError
from gpuguard.model.health import Snapshot
from gpuguard.model.ids import NODE, SubjectId, gpu
from gpuguard.model.readings import Values, merged
from gpuguard.model.topology import Difference, Topology
from gpuguard.ports import Clock
from gpuguard.runtime.assembly import Parts, RulesFolder
from gpuguard.runtime.board import measured
from gpuguard.runtime.look import look
from gpuguard.sources.topology import LEARNED, read_learned
from gpuguard.topology.build import build
from gpuguard.topology.drift import compare
from gpuguard.topology.matrix import Layout, read
from gpuguard.topology.profiles import Expected, expect, parse

# The sources that tell of the wiring; a look of one's own waits for no other.
SOURCES = frozenset({"topology", "nvml", "machine", "pcie"})
HOSTNAME = "proc/sys/kernel/hostname"
LEARNED_COLUMN = "topology_learned"
# The word for: expect nothing.
NO_PROFILE = "none"

Rows = dict[SubjectId, Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A machine's wiring; `expected` is None where nobody knows what it should be, `kind` is what its kind is alone,
    less what was learned. `mistakes` are those of what was learned, with which nothing is compared then. `layout` is
    how a matrix that was read was printed."""

    topology: Topology
    expected: Expected | None
    kind: Expected | None = None
    differences: tuple[Difference, ...]
    mistakes: tuple[str, ...] = ()
    layout: Layout | None = None


def of_machine(parts: Parts, *, state_dir: Path | None, root: Path, clock: Clock, profile: str | None = None) -> Wiring:
    """The wiring of the machine under `root`, by the agent that runs or by a look of one's own.

    Raises  Absent where there is neither a GPU nor a network card; UsageError for a profile that is none
    """
    rows, snapshot = _rows(parts, state_dir, root, clock)
    topology = _with_verdicts(build(rows, host=host_of(root)), snapshot)
    if not topology.devices:
        raise Absent(
            "neither a GPU nor a network card is known here; `gpuguard status` tells what the sources nvml and "
            "topology see, and --from-matrix FILE reads the wiring of another machine"
        )
    profiles = known_profiles()
    node = {column: value for column, value in rows.get(NODE, {}).items() if column != LEARNED_COLUMN}
    kind = expect({**rows, NODE: node}, profiles) if profile is None else chosen(profile, profiles)
    mistakes: tuple[str, ...] = ()
    try:
        expected = expect(rows, profiles) if profile is None else kind
    except ConfigInvalid as error:  # the wiring can be shown all the same, and learned anew
        expected, mistakes = None, tuple(error.mistakes)
    differences = _compared(topology, expected)
    return Wiring(topology=topology, expected=expected, kind=kind, differences=differences, mistakes=mistakes)


def _with_verdicts(topology: Topology, snapshot: Snapshot) -> Topology:
    """The wiring with what stands against GPUs: one that is unfit is no choice for a job."""
    against = {
        subject.id: ", ".join(finding.code for finding in subject.findings if finding.severity == "critical")
        for subject in snapshot.subjects
        if subject.state == "unfit"
    }
    devices = []
    for device in topology.devices:
        own, codes = device.gpu, None if device.pci is None else against.get(gpu(device.pci))
        if own is not None and codes is not None:
            own = msgspec.structs.replace(own, unfit=codes)
        devices.append(msgspec.structs.replace(device, gpu=own))
    return msgspec.structs.replace(topology, devices=tuple(devices))


def _rows(parts: Parts, state_dir: Path | None, root: Path, clock: Clock) -> tuple[Rows, Snapshot]:
    """What the agent knows of the wiring, or a look of one's own where it knows nothing: one of an older version does
    not. What was learned is read anew: the agent may have looked ten minutes ago."""
    others = tuple(name for name in parts.agent.sources if name not in SOURCES)
    snapshot, by = measured(parts, state_dir=state_dir, root=root, clock=clock, without=others)
    rows = rows_of(snapshot)
    if by != "agent" or "topology" not in parts.agent.sources:
        return rows, snapshot
    if not any("topology_changed_total" in values for values in rows.values()):
        return rows_of(look(parts, state_dir=state_dir, root=root, clock=clock, without=others)), snapshot
    now = read_learned(Path(parts.agent.state_dir) / LEARNED)
    if None not in now.values():  # else the agent may read what its caller may not
        rows[NODE] = {column: value for column, value in rows[NODE].items() if column != LEARNED_COLUMN} | now
    return rows, snapshot


def of_matrix(text: str, profile: str | None = None, host: str | None = None) -> Wiring:
    """The wiring that the text of `nvidia-smi topo -m` tells of; `host` is what the machine is called.

    Raises  NotUnderstood where it has no matrix, or one without a GPU; UsageError for a profile that is none
    """
    found = read(text)
    if not found.topology.gpus:
        raise NotUnderstood(
            "there is no GPU in this matrix: give the output of `nvidia-smi topo -m` as it was printed, with tabs or "
            "blanks between its cells"
        )
    topology = msgspec.structs.replace(found.topology, host=host)
    expected = None if profile is None else chosen(profile, known_profiles())
    return Wiring(topology=topology, expected=expected, differences=_compared(topology, expected), layout=found.layout)


def rows_of(snapshot: Snapshot) -> Rows:
    """What is known of each subject at the moment of the snapshot, less what is too old."""
    found = {name: merged(groups, snapshot.at) for name, groups in snapshot.readings.items()}
    return {name: values for name, values in found.items() if values}


def known_profiles() -> dict[str, Expected]:
    """The profiles that ship, by name."""
    return parse(RulesFolder("topology_drift").texts("topology"))


def chosen(name: str, profiles: Mapping[str, Expected]) -> Expected | None:
    """The profile of this name; None for the word that expects nothing.

    Raises  UsageError where there is none, with those that there are
    """
    if name == NO_PROFILE:
        return None
    if name not in profiles:
        raise UsageError(f"no profile {name!r}; there are {', '.join(sorted(profiles))}, and {NO_PROFILE}")
    return profiles[name]


def host_of(root: Path) -> str | None:
    """The machine's own name; None where it was not recorded."""
    try:
        return (root / HOSTNAME).read_text(errors="replace").strip() or None
    except OSError:
        return None


def _compared(topology: Topology, expected: Expected | None) -> tuple[Difference, ...]:
    return () if expected is None else compare(topology, expected)
