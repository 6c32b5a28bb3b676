"""The source as a whole: a switch with its devices, virtual machines, what changes, sleeps, hangs or is not there."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Values, plausible
from gpuguard.runtime.assembly import quantities
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.plugins import shelf
from gpuguard.sources import topology
from gpuguard.sources.topology import LEARNED, MOST_LEARNED, Settings, Wiring, bridges, build, cards, tree
from gpuguard.sweeping.links import LINKS
from tests.support.machines import copied, machine
from tests.support.trees import link, pci_bridge, pci_function, put

NOW = ManualClock().now()
GPU, NIC, SWITCH = "0000:1b:00.0", "0000:1c:00.0", "0000:05:00.0"
GPU_FILES = {"vendor": "0x10de", "class": "0x030200", "numa_node": "1", "local_cpulist": "56-111,168-223"}
NIC_FILES = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700", "numa_node": "1", "max_link_width": "16"}


def switched(root: Path) -> tuple[str, ...]:
    """A GPU and a card behind a switch, and an NVSwitch at the root; gives the path above the GPU."""
    up = pci_bridge(root, "0000:16:00.0", pci_bridge(root, "0000:15:01.0", ("pci0000:15",)))
    above = pci_bridge(root, "0000:17:00.0", up)
    pci_function(root, GPU, above, GPU_FILES)
    pci_function(root, NIC, pci_bridge(root, "0000:17:01.0", up), NIC_FILES)
    pci_function(root, SWITCH, ("pci0000:00",), {"vendor": "0x10de", "class": "0x068000", "numa_node": "0"})
    return above


def wiring(root: Path, **settings: float) -> Wiring:
    return Wiring(Settings(**settings), root, root / LEARNED)  # type: ignore[arg-type]


def changed(source: Wiring) -> object:
    return source.sweep(NOW)[NODE]["topology_changed_total"]


def test_a_switch_with_its_devices(tmp_path: Path) -> None:
    above = switched(tmp_path)
    rows = wiring(tmp_path).sweep(NOW)
    assert rows[SubjectId(f"gpu:{GPU}")] == {
        "gpu_pci_path": above, "gpu_numa_node": 1, "gpu_local_cpus": "56-111,168-223"
    }  # fmt: skip
    assert rows[SubjectId(f"nvswitch:{SWITCH}")] == {"nvswitch_pci_path": ("pci0000:00",), "nvswitch_numa_node": 0}
    card = rows[SubjectId(f"nic:{NIC}")]
    assert (card["nic_pci_path"], card["nic_link_width_limit"]) == ((*above[:-1], "0000:17:01.0"), 16)
    assert {subject for subject in rows if subject.startswith("bridge:")} == {
        f"bridge:{part}" for part in (*above[1:], "0000:17:01.0")
    }
    assert rows[NODE] == {"topology_changed_total": 0}


def test_a_link_is_as_wide_as_its_narrower_end(tmp_path: Path) -> None:
    above = pci_bridge(tmp_path, "0000:15:01.0", ("pci0000:15",), max_link_width="8", max_link_speed="Unknown")
    pci_function(tmp_path, NIC, above, {**NIC_FILES, "max_link_speed": "32.0 GT/s PCIe"})
    row = wiring(tmp_path).sweep(NOW)[SubjectId(f"nic:{NIC}")]
    assert (row["nic_link_width_limit"], row["nic_link_generation_limit"]) == (8, None)


def test_a_virtual_machine_shows_its_root_complex_alone(tmp_path: Path) -> None:
    for n, pci in enumerate((GPU, "0000:00:05.0")):
        pci_function(tmp_path, pci, ("pci0000:00",), {**GPU_FILES, "numa_node": "-1", "local_cpulist": f"0-{n + 7}"})
    rows = wiring(tmp_path).sweep(NOW)
    assert rows[SubjectId(f"gpu:{GPU}")] == {
        "gpu_pci_path": ("pci0000:00",), "gpu_numa_node": None, "gpu_local_cpus": "0-7"
    }  # fmt: skip
    assert not any(subject.startswith("bridge:") for subject in rows)


def test_a_machine_that_was_recorded_without_links_has_unknown_paths(tmp_path: Path) -> None:
    root = copied("h100x8", tmp_path)
    (root / LINKS).unlink()
    rows = wiring(root).sweep(NOW)
    assert all(row["gpu_pci_path"] is None for subject, row in rows.items() if subject.startswith("gpu:"))
    assert not any(subject.startswith("bridge:") for subject in rows)
    assert rows[SubjectId(f"gpu:{GPU}")]["gpu_numa_node"] == 0


def test_whose_a_gpu_is(tmp_path: Path) -> None:
    switched(tmp_path)
    put(tmp_path, {"sys/bus/pci/drivers/vfio-pci/bind": ""})
    folder = (tmp_path / "sys/bus/pci/devices" / GPU).resolve()
    (folder / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/vfio-pci")
    assert wiring(tmp_path).sweep(NOW)[SubjectId(f"gpu:{GPU}")]["gpu_driver"] == "vfio-pci"


def test_changes_are_counted_and_what_stays_is_not(tmp_path: Path) -> None:
    above = switched(tmp_path)
    source = wiring(tmp_path)
    assert [changed(source), changed(source)] == [0, 0]
    (tmp_path / "sys/bus/pci/devices" / GPU).unlink()
    assert [changed(source), changed(source)] == [1, 1]
    pci_function(tmp_path, GPU, above, {**GPU_FILES, "numa_node": "0"})
    assert changed(source) == 2
    put(tmp_path / "sys/bus/pci/devices" / GPU, {"numa_node": "1"})
    assert changed(source) == 3
    put(tmp_path / "sys/bus/pci/devices/0000:17:00.0", {"current_link_width": "4"})
    assert changed(source) == 3, "how a link does is not how it is wired"


def test_a_card_that_was_pulled_out_has_an_empty_row_and_comes_back(tmp_path: Path) -> None:
    switched(tmp_path)
    source = wiring(tmp_path)
    card = SubjectId(f"nic:{NIC}")
    device = tmp_path / "sys/bus/pci/devices" / NIC
    assert source.sweep(NOW)[card]["nic_numa_node"] == 1
    target = os.readlink(device)
    device.unlink()
    assert source.sweep(NOW)[card] == {}
    assert source.sweep(NOW)[card] == {}
    device.symlink_to(target)
    assert source.sweep(NOW)[card]["nic_numa_node"] == 1
    device.unlink()
    assert [card in source.sweep(NOW) for _ in range(5)] == [True, True, True, False, False], "nothing is kept for ever"


def test_it_looks_again_soon_after_something_changed(tmp_path: Path) -> None:
    """A card that is reset for half a minute must not count as gone for ten."""
    switched(tmp_path)
    source = wiring(tmp_path)
    device = tmp_path / "sys/bus/pci/devices" / NIC
    target = os.readlink(device)
    rests = []
    for change in (None, None, device.unlink, lambda: device.symlink_to(target), None):
        if change is not None:
            change()
        source.sweep(NOW)
        rests.append(source.rest())
    assert rests == [60.0, 600.0, 60.0, 60.0, 600.0]
    assert wiring(tmp_path, every=30.0).rest() == 30.0


def test_of_more_cards_than_there_can_be_those_with_rdma_are_told(tmp_path: Path) -> None:
    for n in range(cards.MOST_CARDS + 8):
        pci_function(tmp_path, f"0000:{n // 8:02x}:00.{n % 8}", ("pci0000:00",), NIC_FILES)
    last = f"0000:{n // 8:02x}:00.{n % 8}"
    link(tmp_path, "sys/class/infiniband/mlx5_0/device", f"sys/bus/pci/devices/{last}")
    rows = wiring(tmp_path).sweep(NOW)
    assert sum(subject.startswith("nic:") for subject in rows) == cards.MOST_CARDS
    assert rows[SubjectId("nic:mlx5_0")]["nic_pci"] == last


def test_what_vanishes_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(tmp_path)
    looked = tree.look(tmp_path)
    (tmp_path / "sys/bus/pci/devices" / NIC).unlink()
    (tmp_path / "sys/bus/pci/devices" / GPU).unlink()
    monkeypatch.setattr(tree, "look", lambda root: looked)
    rows = wiring(tmp_path).sweep(NOW)
    assert set(rows) == {NODE, SubjectId(f"nvswitch:{SWITCH}")}


def test_what_hangs_is_unknown_and_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(tmp_path)
    release, asked = threading.Event(), []
    read = bridges.read

    def hang(folder: Path) -> Values:
        asked.append(folder.name)
        if folder.name == "0000:17:00.0":
            release.wait(30)
        return read(folder)

    def hang_too(root: Path, card: cards.Card) -> Values:
        release.wait(30)
        return {}

    monkeypatch.setattr(bridges, "read", hang)
    monkeypatch.setattr(cards, "read", hang_too)
    source = wiring(tmp_path, deadline=0.05)
    for _ in range(2):
        rows = source.sweep(NOW)
        row = rows[SubjectId("bridge:0000:17:00.0")]
        assert (row["bridge_kind"], row["bridge_link_width"]) == ("downstream", None)
        assert rows[SubjectId("bridge:0000:17:01.0")]["bridge_link_width"] == 16
        card = rows[SubjectId(f"nic:{NIC}")]
        assert (card["nic_link_width"], card["nic_numa_node"]) == (None, 1)
        assert rows[NODE]["topology_changed_total"] == 0
    assert asked.count("0000:17:00.0") == 1
    release.set()


def test_nothing_that_sleeps_is_woken_and_no_gpu_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switched(tmp_path)
    put(tmp_path / "sys/bus/pci/devices/0000:17:01.0", {"power/runtime_status": "suspended"})
    put(tmp_path / "sys/bus/pci/devices" / NIC, {"power/runtime_status": "suspended"})
    read: list[str] = []
    link_of = bridges.read_link

    def note(folder: Path) -> Values:
        read.append(folder.name)
        return link_of(folder)

    monkeypatch.setattr(bridges, "read_link", note)
    rows = wiring(tmp_path).sweep(NOW)
    assert sorted(read) == ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"]
    assert "nic_link_width" not in rows[SubjectId(f"nic:{NIC}")]
    assert "bridge_link_width" not in rows[SubjectId("bridge:0000:17:01.0")]


def test_what_the_site_has_learned(tmp_path: Path) -> None:
    switched(tmp_path)
    source = wiring(tmp_path)
    learned = tmp_path / LEARNED
    learned.write_text('name = "Rack 7 – März"\n')
    assert source.sweep(NOW)[NODE]["topology_learned"] == 'name = "Rack 7 – März"\n'
    for content in (b"\xff\xfe", b"x" * (MOST_LEARNED + 1)):
        learned.write_bytes(content)
        assert source.sweep(NOW)[NODE]["topology_learned"] is None
    learned.write_bytes(b"x" * MOST_LEARNED)
    assert source.sweep(NOW)[NODE]["topology_learned"] == "x" * MOST_LEARNED
    learned.unlink()
    learned.mkdir()
    assert source.sweep(NOW)[NODE]["topology_learned"] is None
    learned.rmdir()
    assert "topology_learned" not in source.sweep(NOW)[NODE]


def swept(root: Path, state_dir: Path) -> Sweep:
    source = build(Settings(), root, ManualClock(), state_dir)
    sweeps: list[Sweep] = []

    def emit(batch: Batch) -> None:
        sweeps.extend(event for event in batch.events if isinstance(event, Sweep))
        source.stop()

    source.run(emit, None)
    return sweeps[0]


def test_it_is_a_source(tmp_path: Path) -> None:
    switched(tmp_path / "root")
    (tmp_path / LEARNED).write_text("of the agent's own machine\n")
    sweep = swept(tmp_path / "root", tmp_path)
    assert (sweep.source, sweep.rate, sweep.valid_for) == ("topology", "slow", 1800.0)
    assert "topology_learned" not in sweep.rows[NODE], "of another machine nothing was learned here"
    (tmp_path / "root" / LEARNED).write_text("of that machine\n")
    assert swept(tmp_path / "root", tmp_path).rows[NODE]["topology_learned"] == "of that machine\n"
    for name in ("every", "again", "deadline"):
        with pytest.raises(ValueError, match="above 0"):
            Settings(**{name: 0.0})  # type: ignore[arg-type]


def test_machines_without_a_bus_or_anything_on_it(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no PCI bus"):
        wiring(tmp_path).sweep(NOW)
    pci_function(tmp_path, "0000:00:1f.0", ("pci0000:00",), {"vendor": "0x8086", "class": "0x060100"})
    source = wiring(tmp_path)
    with pytest.raises(Absent, match="neither an NVIDIA GPU nor a network card"):
        source.sweep(NOW)
    pci_function(tmp_path, NIC, ("pci0000:00",), NIC_FILES)
    assert f"nic:{NIC}" in source.sweep(NOW)
    (tmp_path / "sys/bus/pci/devices" / NIC).unlink()
    gone = {SubjectId(f"nic:{NIC}"): {}, NODE: {"topology_changed_total": 1}}
    assert source.sweep(NOW) == gone, "the last one is gone: that is no absence"


@pytest.mark.parametrize("name", ["loop", "nowhere"])
def test_links_that_lie_do_no_harm(tmp_path: Path, name: str) -> None:
    switched(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:99:00.0").symlink_to(
        {"loop": "0000:99:00.0", "nowhere": "../../gone"}[name]
    )  # fmt: skip
    link(tmp_path, f"sys/bus/pci/devices/{GPU}/driver", "sys/bus/pci/drivers/nvidia")
    assert f"gpu:{GPU}" in wiring(tmp_path).sweep(NOW)


def test_the_machine_of_eight_gpus_and_ten_cards() -> None:
    rows = Wiring(topology.Settings(), machine("h100x8"), machine("h100x8") / LEARNED).sweep(NOW)
    count = {kind: sum(subject.startswith(f"{kind}:") for subject in rows) for kind in ("gpu", "nic", "nvswitch")}
    assert count == {"gpu": 8, "nic": 10, "nvswitch": 4}
    assert rows[SubjectId("nic:ens2f0np0")]["nic_driver"] == "bnxt_en"
    redirecting = {row["bridge_p2p_redirect"] for row in rows.values() if row.get("bridge_kind") == "downstream"}
    assert redirecting == {0}
    lost = Wiring(topology.Settings(), machine("h100x8-lost"), Path("/nonexistent/none")).sweep(NOW)
    assert lost[SubjectId("bridge:0000:9c:00.0")]["bridge_link_width"] is None, "above the GPU that is lost"


def test_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    for name in ("fork", "posix_spawn", "posix_spawnp", "system"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert len(Wiring(Settings(), machine("h100x8"), machine("h100x8") / LEARNED).sweep(NOW)) > 18


JUNK = (b"", b"\x00" * 40, b"\xff" * 4096, b"-99999999999999999999", b"0x10de junk", "١٦".encode(), b"16\n16\n" * 3000)


@pytest.mark.parametrize("content", JUNK, ids=range(len(JUNK)))
def test_files_that_hold_anything_do_no_harm(tmp_path: Path, content: bytes) -> None:
    """Every file but those that say what a device is; then those as well."""
    root = tmp_path
    switched(root)
    known = quantities(shelf("gpuguard.sources"))
    names = dict.fromkeys(("numa_node", "local_cpulist", "config", "device", "max_link_speed", "max_link_width"), "")
    for device in (root / "sys/bus/pci/devices").iterdir():
        put(device, names)
    put(root, {
        "proc/cpuinfo": "", "sys/devices/system/node/node0/cpulist": "", "sys/devices/system/node/node0/distance": "",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "", LINKS: "", LEARNED: "",
    })  # fmt: skip
    kinds = {"class", "vendor"}
    files = [path for path in root.rglob("*") if path.is_file()]
    for path in files:
        if path.name not in kinds:
            path.write_bytes(content)
    rows = wiring(root).sweep(NOW)
    assert sum(subject.startswith(("gpu:", "nic:")) for subject in rows) == 2
    for row in rows.values():
        for column, value in row.items():
            assert plausible(known[column], value), (column, value)
    for path in files:
        path.write_bytes(content)
    with pytest.raises(Absent):
        wiring(root).sweep(NOW)
