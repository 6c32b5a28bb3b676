"""How eager gpuguard is, and which word an action has: the settings of a site, and what they make of a finding.

In the policy `observe`, and in mode `observe`, everything is decided and nothing is done outside. Under `strict` any
Xid takes its GPU out of the pool. When the node is drained and given back stands in `drain`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.health import past
from gpuguard.health.machine import REPEATS, Proof, remedy_rank
from gpuguard.model.events import AnyEvent, LogLine
from gpuguard.model.findings import Finding, Remedy
from gpuguard.model.health import DecidedAction, PolicyName, Standing, SubjectHealth
from gpuguard.model.ids import NODE, pci_of
from gpuguard.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How eager gpuguard is; `[policy]` in the configuration."""

    # default: what the fault catalogue says; strict: any Xid takes its GPU out; observe: nothing is done outside.
    name: PolicyName = "default"
    mode: Literal["observe", "drain"] = "observe"  # drain: what is decided is done, by the target of [actuator]
    # A line read more than this after it was printed is old news: it needs a witness that is no log.
    fresh_for: Seconds = Seconds(3600.0)
    clean_passes: int = 3  # so many looks that find nothing before what was unfit may be used again
    clean_for: Seconds = Seconds(600.0)  # over so long at least
    # From then on it is on probation for so long: a mild fault of its hardware takes it out again, after the job.
    probation: Seconds = Seconds(7 * 86400.0)
    repeats: tuple[str, ...] = REPEATS  # the checks whose mild findings do that: they read the hardware's own word
    # Reasons are read by people and by scripts that compare them: do not rewrite them more often.
    reason_every: Seconds = Seconds(600.0)
    release: bool = True  # give the node back by itself once every subject may be used again
    fault_half_life: Seconds = Seconds(10 * 86400.0)  # a remembered fault of a board counts half after so long
    releases_a_day: int = 2  # so often within 24 h; after that a person gives the node back
    # The rungs of the way back, each only while gpuguard's own drain stands; while mode is observe, only said. Whoever
    # performs one has a switch of its own as well, [actuators.gpus] or that of the target: both are needed.
    test_gpus: bool = False  # have GPUs tested after a remedy and where only one witness speaks of a fault
    reset_gpus: bool = False  # reset a GPU for which a reset is due, once nobody uses it
    reboot_node: bool = False  # ask the scheduler for a reboot where one is due
    evict_pods: bool = False  # after a severe fault, ask what runs there to leave; in Slurm nothing can be asked
    # How often each is tried, before a person has to look.
    test_tries: int = 3  # in a day of one GPU, before a person has to look
    reset_tries: int = 2  # likewise
    reboot_tries: int = 2  # likewise, of the node
    # Start a job of Slurm's anew that hangs; while mode is observe, only say that it would be.
    restart_hung: bool = False
    restart_after: Seconds = Seconds(300.0)  # how long the verdict must have stood
    # Between two of one job; each time twice as long as the time before.
    restart_every: Seconds = Seconds(1800.0)
    restart_tries: int = 2  # of one job in a day, by this node
    restart_most: int = 5  # a job that Slurm counts so many restarts of, by whomever and on any node, is left alone
    # End processes that hold GPU memory though their job is over; while mode is observe, only say so.
    reclaim_orphans: bool = False
    reclaim_after: Seconds = Seconds(600.0)  # how long they must have been seen

    def __post_init__(self) -> None:
        for name in (
            "fresh_for",
            "clean_for",
            "probation",
            "reason_every",
            "restart_after",
            "restart_every",
            "reclaim_after",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("restart_tries", "restart_most"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; restart_hung = false turns restarts off")
        for name in ("clean_passes", "releases_a_day", "test_tries", "reset_tries", "reboot_tries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.fault_half_life < 60.0:
            raise ValueError("fault_half_life: must be at least 60 seconds")

    @property
    def proof(self) -> Proof:
        """What a subject that was unfit has to show before it is used again."""
        return Proof(
            clean_for=self.clean_for,
            clean_passes=self.clean_passes,
            probation=self.probation,
            tests=self.test_gpus,
            repeats=self.repeats,
        )

    @property
    def past(self) -> past.Settings:
        """How faults are remembered."""
        return past.Settings(half_life=self.fault_half_life)

    @property
    def dry_run(self) -> bool:
        """Whether nothing outside may be touched."""
        return self.mode == "observe" or self.name == "observe"


REMEDY_ACTIONS: dict[Remedy, DecidedAction] = {
    "none": "none", "test": "test", "reset": "reset_gpu", "reboot": "reboot_node", "replace": "replace",
}  # fmt: skip


def adjust(finding: Finding, event: AnyEvent, settings: Settings) -> Finding:
    """The finding as the site's policy sees it: under `strict` any Xid takes its GPU out of the pool."""
    is_xid = isinstance(event, LogLine) and event.parsed.kind == "xid"
    if settings.name != "strict" or not is_xid or not finding.stands:
        return finding
    if finding.severity == "critical" and finding.self_evident and not finding.consequence:
        return finding
    return msgspec.structs.replace(
        finding, severity="critical", self_evident=True, consequence=False, advice="drain",
        remedy=finding.remedy if finding.remedy != "none" else "reset", clears=("reset", "reboot", "ack"),
        reason=f"{finding.reason}; the policy strict takes a GPU out on any Xid",
    )  # fmt: skip


def component(subject: SubjectHealth) -> str:
    """The subject in a drain's reason: the GPU's index where known, else its address without the domain."""
    if subject.id == NODE:
        return "node"
    if subject.index is not None:
        return f"gpu{subject.index}"
    address = subject.pci or pci_of(subject.id)
    if address is None:
        return subject.id.partition(":")[2] or subject.id
    short = address.partition(":")[2]
    return short if subject.id.startswith("gpu:") else f"nvswitch:{short}"


def decided_action(
    before: SubjectHealth, after: SubjectHealth, standing: Standing | None, settings: Settings
) -> DecidedAction:
    """The one word of a decision: what a node set to act does about this change."""
    if settings.name == "observe":
        return "none"
    if after.state == "unfit" and before.state != "unfit":
        return "drain"
    if after.state == "unfit" and remedy_rank(after.remedy) > remedy_rank(before.remedy):
        return REMEDY_ACTIONS[after.remedy]
    if before.tested is None and after.tested is not None:
        return "release"
    if standing is None or (after.state == "unfit" and standing.confirmed):
        # It is out of service already.
        return "none"
    advice = standing.finding.advice
    return "watch" if advice == "drain" or (advice == "test" and standing.secondary_to) else advice


def held_back(subjects: Iterable[SubjectHealth]) -> list[tuple[SubjectHealth, Standing]]:
    """Critical findings that wait for a witness."""
    return [
        (subject, standing)
        for subject in subjects
        for standing in subject.standing
        if standing.finding.severity == "critical"
        and not standing.confirmed
        and standing.secondary_to is None
        and not standing.finding.consequence
    ]
