"""What differs is a finding after a while, goes by itself, and stays while nobody can tell."""

import itertools
from collections.abc import Callable
from typing import get_args, get_type_hints

import pytest

from gpuguard.detectors.topology_drift import BLAME, REMEDY, Memory, Settings, TopologyDrift, build
from gpuguard.health.decide import decide
from gpuguard.health.policy import Settings as Policy
from gpuguard.health.state import Health
from gpuguard.incident.ranks import COMPANIONS
from gpuguard.model.events import Acknowledged, AnyEvent, Booted, Sweep, Tick
from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE, BootId, EventId, SubjectId
from gpuguard.model.readings import Row, Values
from gpuguard.model.topology import Difference
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.topology.learning import learn
from tests.support.core import instant
from tests.support.stories import shipped_detectors
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8

RULES = RulesFolder("topology_drift")
GPU, CARD = SubjectId(f"gpu:0000:{H100_BUSES[5]}:00.0"), SubjectId("nic:mlx5_3")
DOWN = (0, *(1,) * 17)


class Looks:
    """One check that looks at one machine again and again."""

    def __init__(self, rows: Rows | None = None, **settings: float) -> None:
        self.rows = h100x8() if rows is None else rows
        self.check: TopologyDrift = build(Settings(**settings), RULES)  # type: ignore[arg-type]  # the fields' types
        self.memory: Memory = self.check.start()
        self.now = 0.0
        self.writes = 0

    def look(self, after: float = 60.0, boot: str = "A") -> list[Finding]:
        self.now += after
        at = instant(self.now, BootId(boot))
        rows = {name: Row(subject=name, at=at, source="nvml", values=values) for name, values in self.rows.items()}
        memory, findings = self.check.survey(self.memory, rows)
        self.writes += memory != self.memory
        self.memory = memory
        return list(findings)

    def standing(self, after: float = 60.0) -> list[tuple[str, str]]:
        return [(f.subject, f.code) for f in self.look(after) if f.stands]


def learned(rows: Rows) -> Rows:
    """The rows with what the site learned when the machine was whole."""
    rows[NODE]["topology_learned"] = learn(graph(h100x8()), "2025-06-01")
    return rows


def test_a_whole_machine_has_nothing_to_say_and_nothing_to_write() -> None:
    for rows, writes in ((h100x8(), 0), (learned(h100x8()), 1)):  # that there is a file is remembered
        looks = Looks(rows)
        assert [looks.standing() for _ in range(6)] == [[]] * 6
        assert looks.writes == writes


def test_it_waits_while_hardware_comes_up_and_takes_back_what_it_said() -> None:
    looks = Looks()
    looks.rows[GPU]["nvlink_up"] = DOWN
    assert [looks.standing() for _ in range(4)] == [[], [], [(GPU, "topology_nvlinks")], [(GPU, "topology_nvlinks")]]
    assert looks.writes == 1
    looks.rows = h100x8()
    (gone,) = [f for f in looks.look() if f.code == "topology_nvlinks"]
    assert not gone.stands
    assert looks.memory == Memory()
    assert all(f.code == "topology_profile" for f in looks.look())


def test_what_comes_and_goes_within_the_hold_is_never_told() -> None:
    looks = Looks()
    for _ in range(3):
        looks.rows[GPU]["nvlink_up"] = DOWN
        assert looks.standing(100.0) == []
        looks.rows = h100x8()
        assert looks.standing(60.0) == []


def test_what_nobody_can_tell_now_stays_as_it_was() -> None:
    looks = Looks(hold=0.0)
    looks.rows[GPU]["nvlink_up"] = DOWN
    assert looks.standing() == [(GPU, "topology_nvlinks")]
    looks.rows[GPU]["nvlink_up"] = looks.rows[GPU]["nvlink_peers"] = None
    assert [f.code for f in looks.look()] == ["topology_profile"]  # it says nothing of it, neither way
    assert len(looks.memory.seen) == 1
    looks.rows = h100x8()
    assert [f.stands for f in looks.look() if f.code == "topology_nvlinks"] == [False]


def test_what_is_not_expected_any_more_goes() -> None:
    looks = Looks(learned(h100x8()), hold=0.0)
    del looks.rows[CARD]
    assert looks.standing() == [(CARD, "topology_nic_missing")]
    looks.rows[NODE]["topology_learned"] = ""
    assert [(f.code, f.stands) for f in looks.look()] == [("topology_profile", False), ("topology_nic_missing", False)]


def test_a_reboot_begins_anew() -> None:
    looks = Looks()
    looks.rows[GPU]["nvlink_up"] = DOWN
    for _ in range(3):
        looks.look()
    looks.now = 0.0
    assert not any(f.stands for f in looks.look(boot="B"))
    assert not any(f.stands for f in looks.look(boot="B"))
    assert any(f.stands for f in looks.look(boot="B"))


def test_a_machine_without_a_profile_is_judged_by_nothing() -> None:
    looks = Looks(hold=0.0)
    del looks.rows[NODE]["machine_profile"]
    for row in looks.rows.values():
        row.pop("nvlinks_expected", None)
    looks.rows[GPU]["nvlink_up"] = DOWN
    assert looks.standing() == []


def test_a_file_with_mistakes_is_a_finding_and_no_crash() -> None:
    looks = Looks(hold=0.0)
    looks.rows[GPU]["nvlink_up"] = DOWN
    looks.look()
    looks.rows[NODE]["topology_learned"] = "[nic.x]\nfoo = 1\n[nic.y]\nfoo = 1\n"
    (finding,) = looks.look()
    assert (finding.subject, finding.code, finding.stands, finding.advice) == (NODE, "topology_profile", True, "watch")
    assert "[nic.x]: Object contains unknown field `foo`" in finding.reason
    assert "(and 1 more)" in finding.reason
    assert len(looks.memory.seen) == 1  # what stood before is neither confirmed nor taken back
    looks.rows[NODE]["topology_learned"] = ""
    assert looks.standing() == [(GPU, "topology_nvlinks")]


def test_tables_of_the_rules_that_somebody_broke_are_a_finding() -> None:
    class Broken:
        def text(self, name: str) -> str:
            raise AssertionError("the check has its own tables from rules/topology/")

        def texts(self, folder: str) -> dict[str, str]:
            return {"mine": "[a]\nnothing = 1"}

    looks = Looks()
    looks.check = build(Settings(), Broken())
    (finding,) = looks.look()
    assert "rules/topology/mine.toml: [a]" in finding.reason


def test_peers_that_the_driver_denied_as_it_came_up_are_asked_again_first() -> None:
    """An agent that begins with the machine asks before the fabric manager is done, and again after ten minutes."""
    looks = Looks(broken("p2p"))
    assert [looks.standing(300.0) for _ in range(5)] == [[], [], [], [(GPU, "topology_p2p")], [(GPU, "topology_p2p")]]
    looks = Looks(broken("p2p"))
    assert [looks.standing(300.0) for _ in range(2)] == [[], []]
    looks.rows = h100x8()
    assert [looks.standing(300.0) for _ in range(4)] == [[], [], [], []]


# --- while nobody can tell ------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[str], bool]] = {
    "machine": lambda column: column in ("machine_profile", "gpus_on_bus", "nvlinks_expected"),
    "topology": lambda column: column.startswith(
        ("nic_", "bridge_", "nvswitch_", "numa_", "cpu_", "topology_", "gpu_pci_path", "gpu_numa_node", "gpu_local")
    ),
    "pcie": lambda column: column.startswith("pcie_link_") and not column.endswith("expected"),
    "fast": lambda column: column in ("gpu_up", "gpu_index", "gpu_uuid"),
    "medium": lambda column: column in ("nvlink_up", "mig_mode"),
    "slow": lambda column: not any(of(column) for name, of in PARTS.items() if name != "slow"),
}


def part(rows: Rows, *names: str) -> Rows:
    """What these sources alone tell of the machine."""
    found = {
        name: {column: value for column, value in values.items() if any(PARTS[source](column) for source in names)}
        for name, values in rows.items()
    }
    return {name: values for name, values in found.items() if values}


def broken(kind: str) -> Rows:
    """A machine that differs so."""
    rows = h100x8()
    rows[NODE] |= {"gpus_on_bus": 8, "topology_changed_total": 0}
    other = SubjectId(f"gpu:0000:{H100_BUSES[2]}:00.0")
    match kind:
        case "gpu_missing":
            del rows[GPU]
        case "silent":
            rows[GPU] = {"gpu_pci_path": rows[GPU]["gpu_pci_path"], "nvlinks_expected": 18}
        case "nic_missing":
            del rows[CARD]
        case "nvlinks":
            rows[GPU]["nvlink_up"] = DOWN
        case "pcie_width":
            rows[GPU]["pcie_link_width"] = 8
        case "numa":
            rows[GPU]["gpu_numa_node"] = 0
        case "gpu_swapped":
            rows[GPU]["gpu_uuid"], rows[other]["gpu_uuid"] = rows[other]["gpu_uuid"], rows[GPU]["gpu_uuid"]
        case "p2p":
            peers = rows[GPU]["p2p_read"]
            assert isinstance(peers, tuple)
            rows[GPU]["p2p_read"] = tuple(5 if place % 2 else part for place, part in enumerate(peers))
    return rows


@pytest.mark.parametrize("profile", ["learned", "hgx-h100-8", "dgx-h100"])
@pytest.mark.parametrize(
    "kind", ["gpu_missing", "silent", "nic_missing", "nvlinks", "pcie_width", "numa", "gpu_swapped", "p2p"]
)
def test_an_agent_that_begins_anew_takes_nothing_back(profile: str, kind: str) -> None:
    """Its sources come one after another, in any order; a person's word on a finding would be forgotten."""
    rows = broken(kind)
    rows[NODE]["machine_profile"] = "hgx-h100-8" if profile == "learned" else profile
    if profile == "learned":
        learned(rows)
    looks = Looks(rows)
    looks.look()
    looks.look(900.0)
    told = {(f.subject, f.code) for f in looks.look() if f.stands}
    before = looks.memory.seen
    for count in range(len(PARTS) + 1):
        for sources in itertools.combinations(PARTS, count):
            looks.rows = part(rows, *sources)
            said = [f for f in looks.look(1.0) if f.code != "topology_profile"]
            assert [f.code for f in said if not f.stands] == [], sources
            assert {(f.subject, f.code) for f in said} <= told, sources
            assert looks.memory.seen == before, sources


def test_a_learned_file_that_cannot_be_read_is_told_and_nothing_is_taken_back() -> None:
    looks = Looks(learned(h100x8()), hold=0.0)
    del looks.rows[CARD]
    assert looks.standing() == [(CARD, "topology_nic_missing")]
    looks.rows[NODE]["topology_learned"] = None
    (finding,) = looks.look()
    assert (finding.code, finding.stands) == ("topology_profile", True)
    assert "cannot be read" in finding.reason
    looks.rows = learned(h100x8())
    assert [(f.code, f.stands) for f in looks.look()] == [("topology_profile", False), ("topology_nic_missing", False)]


def test_a_site_that_learned_and_hears_no_more_of_it_is_told_so() -> None:
    looks = Looks(learned(h100x8()))
    looks.look()
    looks.rows = part(h100x8(), "machine", "fast", "medium", "slow", "pcie")
    assert [looks.standing() for _ in range(4)] == [[], [], [(NODE, "topology_profile")], [(NODE, "topology_profile")]]
    looks.rows = h100x8()
    looks.rows[NODE]["topology_changed_total"] = 0  # it looked, and the file is gone
    assert looks.standing() == []
    assert looks.memory == Memory()


# --- speed ----------------------------------------------------------------------------------------------------------

BUSY: Values = {"performance_state": 0, "utilization_ratio": 0.9}


def slow(**columns: object) -> Looks:
    looks = Looks(learned(h100x8()))
    looks.rows[GPU] |= {"pcie_link_generation": 1, **columns}  # type: ignore[dict-item]  # as Values hold
    return looks


def test_a_link_at_rest_is_never_slow() -> None:
    looks = slow(performance_state=8, utilization_ratio=0.0)
    assert [looks.standing() for _ in range(10)] == [[]] * 10
    assert looks.memory.seen == ()


def test_a_link_that_is_slow_at_work_is_told_at_the_fifth_look() -> None:
    looks = slow(**BUSY)
    told = [looks.standing() for _ in range(6)]
    assert told == [[]] * 4 + [[(GPU, "topology_pcie_speed")]] * 2
    looks.rows[GPU]["performance_state"] = 8
    assert looks.standing() == []  # it says nothing: what was told stands
    assert len(looks.memory.seen) == 1
    looks.rows[GPU] |= {"pcie_link_generation": 5, **BUSY}
    assert [f.stands for f in looks.look() if f.code == "topology_pcie_speed"] == [False]


def test_rest_begins_the_looks_anew_and_looks_close_together_are_one() -> None:
    looks = slow(**BUSY)
    for _ in range(4):
        looks.look()
    looks.rows[GPU]["performance_state"] = 8
    looks.look()
    looks.rows[GPU]["performance_state"] = 0
    assert [looks.standing() for _ in range(4)] == [[]] * 4
    looks = slow(**BUSY)
    assert [looks.standing(5.0) for _ in range(24)] == [[]] * 24


def test_traffic_is_work_as_well() -> None:
    looks = slow(performance_state=0, utilization_ratio=0.0, pcie_rx_bytes_per_second=2e8)
    assert [looks.standing() for _ in range(5)][-1] == [(GPU, "topology_pcie_speed")]
    looks = slow(performance_state=0, utilization_ratio=0.0, pcie_rx_bytes_per_second=9e7)
    assert [looks.standing() for _ in range(9)] == [[]] * 9


# --- what it is for the core ----------------------------------------------------------------------------------------


def test_several_of_one_kind_on_one_subject_are_one_finding() -> None:
    rows = learned(h100x8())
    rows[NODE]["topology_learned"] = str(rows[NODE]["topology_learned"]).replace("PIX", "NODE")
    looks = Looks(rows, hold=0.0)
    for n in range(8):
        name = SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")
        looks.rows[name]["nvlink_peers"] = ("nvswitch",) * 18
    assert looks.standing() == []  # nearer than expected is no difference
    del looks.rows[GPU]
    del looks.rows[CARD]
    assert sorted(looks.standing()) == [(GPU, "topology_gpu_missing"), (CARD, "topology_nic_missing")]


@pytest.mark.parametrize("kind", get_args(get_type_hints(Difference)["kind"]))
def test_no_kind_asks_for_more_than_a_look(kind: str) -> None:
    finding = build(Settings(), RULES)._finding(kind, GPU, instant(1.0), True, "words")
    assert finding.code == f"topology_{kind}"
    assert finding.severity == ("info" if kind in ("gpu_moved", "unexpected") else "degraded")
    assert finding.advice in ("none", "watch")
    assert finding.remedy in ("none", "test")
    assert not finding.latched
    assert not finding.self_evident
    assert set(BLAME) | set(REMEDY) <= set(get_args(get_type_hints(Difference)["kind"]))


def test_the_fault_itself_names_the_incident_and_the_wiring_its_consequence() -> None:
    """A link goes down: nvlink_down says so, and what differs in the wiring comes with it; nothing is drained."""
    health = Health(now=instant(0.0))
    events: list[AnyEvent] = [Booted(id=EventId("b"), at=instant(0.0), previous=None)]
    for n in range(8):
        rows = h100x8()
        rows[GPU]["nvlink_up"] = (1,) * 18 if n < 2 else DOWN
        events.append(
            Sweep(
                id=EventId(f"s{n}"), at=instant(60.0 * n + 1), source="nvml", rate="medium", valid_for=180.0, rows=rows
            )
        )
    owed = []
    for event in events:
        health, decision = decide(health, event, shipped_detectors(), Policy(mode="drain"))
        owed += decision.owed
    subject = health.subjects[GPU]
    assert {s.finding.code for s in subject.standing} == {"nvlink_down", "topology_nvlinks"}
    assert {s.incident for s in subject.standing} == {i.id for i in health.incidents.values() if i.subject == GPU}
    assert [i.name for i in health.incidents.values() if i.subject == GPU] == ["nvlink_down"]
    assert subject.state == "watched"
    assert owed == []
    assert "topology_nvlinks" in COMPANIONS


def test_a_persons_word_on_what_is_gone_for_good_holds() -> None:
    """Its subject is healthy, has no UUID and was never seen: it is no stranger all the same."""
    rows = learned(h100x8())
    rows[NODE] |= {"topology_changed_total": 0, "gpus_on_bus": 8}
    del rows[CARD]
    day = 86400.0
    events: list[AnyEvent] = [Booted(id=EventId("b"), at=instant(0.0), previous=None)]
    for at in (1.0, 200.0, *(n * day for n in range(1, 20))):
        events.append(Tick(id=EventId(f"t{at}"), at=instant(at)))
        events.append(
            Sweep(id=EventId(f"s{at}"), at=instant(at), source="topology", rate="slow", valid_for=1800.0, rows=rows)
        )
        if at == 200.0:
            events.append(
                Acknowledged(
                    id=EventId("a"), at=instant(300.0), code="topology_nic_missing", subject=CARD, by="root", reason=""
                )
            )
    health = Health(now=instant(0.0))
    told: list[str] = []
    for event in events:
        health, decision = decide(health, event, shipped_detectors(), Policy(mode="drain"))
        told += [transition.state for transition in decision.transitions if transition.subject == CARD]
    assert told == ["watched", "healthy"]
    assert health.subjects[CARD].standing == ()


@pytest.mark.parametrize("settings", [{"hold": -1.0}, {"p2p_hold": -1.0}, {"looks": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Settings(**settings)  # type: ignore[arg-type]  # as given


def test_without_rows_there_is_nothing_to_say() -> None:
    check = build(Settings(), RULES)
    assert check.survey(check.start(), {}) == (Memory(), ())
