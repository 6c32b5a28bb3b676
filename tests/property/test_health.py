"""What must hold for every story, whatever the kernel prints and in whatever order it is read."""

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.health import machine
from gpuguard.health.decide import decide
from gpuguard.health.state import Health, difference, restore
from gpuguard.model.events import AnyEvent
from gpuguard.model.ids import gpu, parse_pci_address
from tests.support.core import ACTING, Core, detectors, instant, line, probed, states, tick, xid

ADDRESSES = ("0000:1b:00", "0000:43:00", "0000:52:00")
TEXTS = (
    (13, "pid={pid}, name=train, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Out Of Range Address"),
    (31, "pid={pid}, name=train, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"),
    (43, "pid={pid}, name=train, Ch 00000008"),
    (45, "pid={pid}, name=train, Ch 00000008"),
    (63, "Row Remapper: New row (0x0000000000aa5500) marked for remapping, reset gpu to activate."),
    (94, "pid={pid}, name=train, Contained: SM (0x1). RST: No, D-RST: No"),
    (109, "pid={pid}, name=train, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x1"),
    (48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"),
    (119, "Timeout after 6s of waiting for RPC response from GPU1 GSP! Expected function 76 (GSP_RM_CONTROL)"),
    (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
    (162, ""), (163, ""), (999, "what is this"),
)  # fmt: skip
HARMLESS = {8, 11, 13, 25, 31, 32, 43, 45, 63, 68, 69, 94, 137, 162, 999}
# What a peer may echo of another GPU's loss is left out where GPUs are compared alone.


@st.composite
def stories(draw: st.DrawFn, codes: tuple[tuple[int, str], ...] = TEXTS) -> list[AnyEvent]:
    """Up to thirty events in order of time, some of them far apart."""
    mono, events = 100.0, []
    for _ in range(draw(st.integers(1, 30))):
        mono += draw(st.sampled_from((0.0, 0.01, 1.0, 20.0, 40.0, 700.0, 4000.0)))
        address = draw(st.sampled_from(ADDRESSES))
        match draw(st.integers(0, 9)):
            case 0:
                events.append(tick(mono))
            case 1:
                events.append(probed(address, mono, answers=draw(st.booleans())))
            case 2:
                events.append(
                    line(f"NVRM: GPU at PCI:{address}: GPU-{address[5:7]}000000-0000-0000-0000-000000000000", mono)
                )
            case _:
                code, rest = draw(st.sampled_from(codes))
                text = rest.format(pid=draw(st.integers(1000, 1003)))
                source = draw(st.sampled_from(("kmsg", "kmsg", "journal")))
                events.append(xid(address, code, mono, text, source=source))
    return events


@given(stories(), st.data())
def test_replay_from_disk_equals_live(story: list[AnyEvent], data: st.DataObject) -> None:
    live = Core()
    disk: dict[str, bytes] = {}
    written = live.health
    cuts = data.draw(st.sets(st.integers(0, len(story) - 1)))
    again = Core()
    for place, event in enumerate(story):
        live.tell(event)
        before = again.health
        again.tell(event)
        puts, deletes = difference(before if place else written, again.health)
        for key in deletes:
            del disk[key]
        disk.update(puts)
        if place in cuts and disk:
            restored = restore(disk, detectors(), instant(0.0))
            assert restored.subjects == again.health.subjects
            assert restored.memory == again.health.memory
            assert restored.drain == again.health.drain
            again.health = Health(
                now=again.health.now, subjects=restored.subjects, retired=restored.retired,
                incidents=restored.incidents, sources=again.health.sources, drain=restored.drain,
                identified=restored.identified, memory=restored.memory,
            )  # fmt: skip
    assert again.health.subjects == live.health.subjects
    assert again.health.drain == live.health.drain
    assert again.owed() == live.owed()


@given(stories())
def test_a_gpu_is_judged_as_if_it_were_alone(story: list[AnyEvent]) -> None:
    together = Core()
    together.tell(*story)
    for address in ADDRESSES:
        name = gpu(parse_pci_address(address))
        alone = Core()
        alone.tell(tick(99.0))
        for event in story:
            concerns = getattr(event, "pci", None) or getattr(getattr(event, "parsed", None), "pci", None)
            if concerns in (None, parse_pci_address(address)):
                alone.tell(event)
        mine, theirs = alone.health.subjects.get(name), together.health.subjects.get(name)
        assert (mine and (mine.state, mine.remedy, mine.standing)) == (
            theirs and (theirs.state, theirs.remedy, theirs.standing)
        )


@given(stories())
def test_a_state_moves_only_as_the_table_says(story: list[AnyEvent]) -> None:
    core = Core()
    for event in story:
        before = dict(core.health.subjects)
        decision = core.tell(event)
        states: dict[str, str] = {name: subject.state for name, subject in before.items()}
        for told in decision.transitions:
            # Two findings of one event are told one after the other: the second from where the first led to.
            old = states.get(told.subject, "healthy")
            states[told.subject] = told.state
            assert told.before == old
            assert any(row[old] == told.state for row in machine.TABLE.values())
            assert not (old == "unfit" and told.state in ("healthy", "watched", "unknown"))


@given(stories(tuple(t for t in TEXTS if t[0] in HARMLESS)))
def test_program_faults_and_unknown_codes_never_drain(story: list[AnyEvent]) -> None:
    core = Core()
    core.tell(tick(99.0), *(e for e in story if getattr(e, "source", "") != "pci_config"))
    assert core.owed() == []
    assert core.health.drain is None


@given(stories())
def test_a_fact_that_is_read_twice_owes_nothing_twice(story: list[AnyEvent]) -> None:
    once, twice = Core(), Core()
    once.tell(*story)
    for event in story:
        twice.tell(event)
        decision = twice.tell(event)
        assert [o for o in decision.owed if not o.cancelled] == []
    assert once.owed() == twice.owed()


@given(stories())
def test_the_health_given_is_never_changed(story: list[AnyEvent]) -> None:
    health = Health(now=instant(0.0))
    for event in story:
        before = difference(Health(now=instant(0.0)), health)
        after, _ = decide(health, event, detectors(), ACTING)
        assert difference(Health(now=instant(0.0)), health) == before
        health = after


@given(stories())
def test_the_same_story_is_decided_the_same_way(story: list[AnyEvent]) -> None:
    first, second = Core(), Core()
    first.tell(*story)
    second.tell(*story)
    names = set(first.health.subjects) | set(second.health.subjects)
    assert states(first.health, names) == states(second.health, names)
    assert first.decisions == second.decisions
