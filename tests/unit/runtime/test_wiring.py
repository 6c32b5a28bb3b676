"""The wiring as the agent that runs knows it: read anew where it looked long ago, or cannot know."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from gpuguard.model.health import Snapshot
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Group
from gpuguard.runtime import wiring
from gpuguard.runtime.assembly import Parts, assemble
from gpuguard.runtime.clock import ManualClock
from gpuguard.topology.learning import learn
from gpuguard.topology.offered import offered, withheld
from tests.support.snapshots import NOW, full
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8

LEARNED = learn(graph(h100x8()), "2025-06-01")


def snapshot(rows: Rows) -> Snapshot:
    """What an agent tells that measured this."""
    readings = {
        name: {"topology/slow": Group(source="topology", rate="slow", at=NOW, valid_for=1800.0, values=values)}
        for name, values in rows.items()
    }
    return msgspec.structs.replace(full(), readings=readings)


def told_by_agent(monkeypatch: pytest.MonkeyPatch, rows: Rows) -> None:
    monkeypatch.setattr(wiring, "measured", lambda *_, **__: (snapshot(rows), "agent"))


def parts(state_dir: Path) -> Parts:
    found = assemble()
    return dataclasses.replace(found, agent=dataclasses.replace(found.agent, state_dir=str(state_dir)))


def of_machine(state_dir: Path) -> wiring.Wiring:
    return wiring.of_machine(parts(state_dir), state_dir=state_dir, root=Path("/"), clock=ManualClock())


def test_what_was_learned_a_moment_ago_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = h100x8()
    rows[NODE] |= {"topology_changed_total": 0, "topology_learned": "[machine]\nnuma_nodes = 8\n"}
    told_by_agent(monkeypatch, rows)
    learned = tmp_path / "topology.toml"
    learned.write_text(LEARNED)
    found = of_machine(tmp_path)
    assert (found.differences, found.mistakes) == ((), ())
    learned.unlink()
    found = of_machine(tmp_path)
    assert found.expected is not None
    assert found.expected.title == "HGX or DGX H100, eight GPUs"


def test_what_the_caller_may_not_read_the_agent_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = h100x8()
    rows[NODE] |= {"topology_changed_total": 0, "topology_learned": LEARNED}
    told_by_agent(monkeypatch, rows)
    (tmp_path / "topology.toml").mkdir()
    found = of_machine(tmp_path)
    assert found.expected is not None
    assert found.expected.title == "the learned profile"


def test_an_agent_that_knows_nothing_of_the_wiring_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an older version still runs."""
    told_by_agent(monkeypatch, {name: {"gpu_index": 0} for name in h100x8() if name.startswith("gpu:")})
    monkeypatch.setattr(wiring, "look", lambda *_, **__: snapshot(h100x8()))
    found = of_machine(tmp_path)
    assert len(found.topology.nics) == 8


def test_a_gpu_that_is_unfit_is_no_choice_whoever_calls_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = h100x8()
    rows[NODE]["topology_changed_total"] = 0
    taken = snapshot(rows)
    (view,) = taken.subjects  # unfit, by xid79
    first = msgspec.structs.replace(view, id=SubjectId(f"gpu:0000:{H100_BUSES[0]}:00.0"))
    told = msgspec.structs.replace(taken, subjects=(first,))
    monkeypatch.setattr(wiring, "measured", lambda *_, **__: (told, "agent"))
    topology = of_machine(tmp_path).topology
    assert withheld(topology) == {"GPU0": "it is unfit: xid79"}
    assert offered(topology, ["GPU0", "GPU5"]) == ("GPU5",)
