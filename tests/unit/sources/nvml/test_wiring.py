"""The driver's word on how GPUs are wired: what links end at, what two GPUs share, which processors are near."""

import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from gpuguard.child.frames import Unframer, framed, receive
from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.quantities import BY_NAME, WIRING
from gpuguard.model.readings import Rate, Values, plausible
from gpuguard.sources.nvml.child import Served
from gpuguard.sources.nvml.library import Device, Library, NvmlError
from gpuguard.sources.nvml.played import Machine, Player, load
from gpuguard.sources.nvml.protocol import Begin, Begun, Doing, InCall, Look, Report, Request, decode_report, encode
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sources.nvml.stopwatch import Stopwatch
from gpuguard.topology.build import build
from tests.support.machines import machine
from tests.support.nvml import FakeLibrary, error, library_of

NOWHERE = Path("/nonexistent")
BUSES = ("1b", "43", "9d", "c3")
GPUS = tuple(SubjectId(f"gpu:0000:{bus}:00.0") for bus in BUSES)
TYPE, ADDRESS = "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"
LOST, NOT_FOUND_CALL, NOT_SUPPORTED, INVALID, UNKNOWN = 15, 13, 3, 2, 999
PAIRED = ("common_ancestors", "p2p_read", "p2p_write", "p2p_nvlink", "p2p_atomics")
COLUMNS = {quantity.name for quantity in WIRING}


def _spelled(bus: str) -> str:
    return f"00000000:{bus.upper()}:00.0"


def _bridged(links: int = 12) -> dict[str, Any]:
    """Four A100 without a switch: each two joined by four links. Any: a recording is nested JSON."""
    devices = []
    for n, bus in enumerate(BUSES):
        others = [other for other in BUSES if other != bus]
        calls = {
            "nvmlDeviceGetMigMode": {"currentMode": 0, "pendingMode": 0},
            "nvmlDeviceGetNvLinkState": {str(link): 1 for link in range(links)},
            TYPE: {str(link): 0 for link in range(links)},
            ADDRESS: {str(link): {"busId": _spelled(others[link * 3 // links])} for link in range(links)},
            "nvmlDeviceGetTopologyCommonAncestor": {
                str(m): 20 if m // 2 == n // 2 else 50 for m in range(n + 1, len(BUSES))
            },
            "nvmlDeviceGetP2PStatus": {f"{m}/{index}": 0 for m in range(len(BUSES)) for index in range(4)},
            "nvmlDeviceGetCpuAffinity": [0xFFFF << 48, 1],
            "nvmlDeviceGetMemoryAffinity": {"0": [0b10]},
            "nvmlDeviceGetCudaComputeCapability": {"major": 8, "minor": 0},
            "nvmlDeviceGetModuleId": n + 1,
        }  # fmt: skip
        fields = {"91": links, "147": 0, "90": 25000}
        devices.append({"uuid": f"GPU-{n}", "pci": _spelled(bus), "calls": calls, "fields": fields})
    return {"system": {}, "devices": devices}


def _player(recording: Mapping[str, Any]) -> Player:
    player = Player(msgspec.convert(recording, Machine), lambda: 100.0)
    player.open()
    return player


@pytest.fixture(params=["player", "fake"])
def both(request: pytest.FixtureRequest) -> Any:
    """Makes a library of a recording: what plays it, and what a test holds. Any: a function of two shapes."""
    return _player if request.param == "player" else library_of


def _slow(library: Library) -> dict[SubjectId, Values]:
    return Reader(library, NOWHERE).sweep("slow")


def _of_machine(name: str) -> dict[SubjectId, Values]:
    """Every row of a recorded machine, all classes in one."""
    player = Player(load(machine(name) / "nvml.json"), lambda: 100.0)
    player.open()
    reader = Reader(player, machine(name))
    rows: dict[SubjectId, Values] = {}
    rates: tuple[Rate, ...] = ("fast", "medium", "slow")
    for rate in rates:
        for subject, row in reader.sweep(rate).items():
            rows.setdefault(subject, {}).update(row)
    assert (reader.counts.errors > 0) == (name == "h100x8-lost")
    assert not reader.counts.columns
    return rows


# --- the recorded machines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "peers", "to_switches", "speed", "capability"),
    [
        ("a100x8", [f"nvswitch:0000:c{n}:00.0" for n in range(4, 10) for _ in range(2)], 12, 25e9, "8.0"),
        ("h100x8", [f"nvswitch:0000:0{5 + link * 4 // 18}:00.0" for link in range(18)], 18, 26.562e9, "9.0"),
        ("b200x8", ["nvswitch"] * 18, 18, 53.125e9, "10.0"),
    ],
)
def test_links_of_each_generation(name: str, peers: list[str], to_switches: int, speed: float, capability: str) -> None:
    rows = _of_machine(name)
    gpus = {subject: row for subject, row in rows.items() if subject.startswith("gpu:")}
    assert len(gpus) == 8
    for n, row in enumerate(gpus.values()):
        expected = {
            "nvlink_peers": tuple(peers), "nvlinks_to_switches": to_switches, "nvlink_speed_bytes_per_second": speed,
            "gpu_compute_capability": capability, "gpu_module_id": n + 1,
            "nvml_cpus": ("0-55,112-167", "56-111,168-223")[n // 4], "nvml_numa_nodes": str(n // 4),
        }  # fmt: skip
        assert expected.items() <= row.items()
        assert "gpu_memory_numa_node" not in row  # no coherent part
        assert not {"fabric_clique", "fabric_cluster"} & row.keys()  # the fabric ends with the node
        pcis = [subject.partition(":")[2] for subject in gpus]
        near = 20 if name == "a100x8" else 40  # pairs of GPUs below one root port, behind switches of their own
        levels = {m: near if m // 2 == n // 2 else 40 if m // 4 == n // 4 else 50 for m in range(8) if m != n}
        assert row["common_ancestors"] == tuple(part for m, level in levels.items() for part in (pcis[m], level))
        for column in PAIRED[1:]:
            assert row[column] == tuple(part for pci in pcis if pci != pcis[n] for part in (pci, 0))
    bond = f"NV{to_switches}"
    graph = build(rows)
    assert {graph.cell(i, j) for i in range(8) for j in range(8) if i != j} == {bond}
    assert graph.levels[0][1:] == ("PXB" if name == "a100x8" else "NODE", "NODE", "NODE", *["SYS"] * 4)


def test_cards_without_nvlink_have_no_links_and_do_not_reach_each_other_atomically() -> None:
    rows = _of_machine("l40sx4")
    row = rows[SubjectId("gpu:0000:17:00.0")]
    assert not {"nvlink_peers", "nvlinks_to_switches", "nvlink_speed_bytes_per_second", "gpu_module_id"} & row.keys()
    assert (row["p2p_read"], row["p2p_nvlink"], row["p2p_atomics"]) == tuple(
        ("0000:65:00.0", code, "0000:ca:00.0", code, "0000:e3:00.0", code) for code in (0, 5, 5)
    )
    graph = build(rows)
    assert [graph.cell(0, other) for other in range(4)] == ["X", "NODE", "SYS", "SYS"]


def test_a_gpu_in_mig_mode_has_a_place_and_no_links() -> None:
    rows = _of_machine("h100x8-mig")
    cut, whole = (rows[SubjectId(f"gpu:0000:{bus}:00.0")] for bus in ("1b", "43"))
    assert not {"nvlink_peers", "nvlinks_to_switches", "nvlink_speed_bytes_per_second"} & cut.keys()
    assert len(whole["nvlink_peers"]) == 18  # type: ignore[arg-type]
    assert cut["nvml_cpus"] == "0-55,112-167"
    assert (cut["common_ancestors"], whole["p2p_read"]) == (
        tuple(part for bus in ("43", "52", "61", "9d", "c3", "d1", "df")
              for part in (f"0000:{bus}:00.0", 40 if bus < "9d" else 50)),
        tuple(part for bus in ("1b", "52", "61", "9d", "c3", "d1", "df")
              for part in (f"0000:{bus}:00.0", 5 if bus == "1b" else 0)),
    )  # fmt: skip


def test_a_lost_gpu_is_in_no_pair() -> None:
    rows = _of_machine("h100x8-lost")
    gone = "0000:9d:00.0"
    assert not COLUMNS & rows[SubjectId(f"gpu:{gone}")].keys()
    for subject, row in rows.items():
        if subject.startswith("gpu:") and gone not in subject:
            for column in PAIRED:
                assert len(row[column]) == 2 * 6  # type: ignore[arg-type]
                assert gone not in row[column]  # type: ignore[operator]
    graph = build(rows)
    assert graph.cell(0, 1) == "NV18"
    assert graph.cell(0, 5) == "NV17"  # one link of that one is down


# --- links -----------------------------------------------------------------------------------------------------------


def test_gpus_that_are_joined_without_a_switch(both: Any) -> None:
    rows = _slow(both(_bridged()))
    assert rows[GPUS[0]]["nvlink_peers"] == (GPUS[1],) * 4 + (GPUS[2],) * 4 + (GPUS[3],) * 4
    assert rows[GPUS[3]]["nvlink_peers"] == (GPUS[0],) * 4 + (GPUS[1],) * 4 + (GPUS[2],) * 4
    assert rows[GPUS[0]]["nvlinks_to_switches"] == 0
    graph = build(rows)
    assert {graph.cell(i, j) for i in range(4) for j in range(4) if i != j} == {"NV4"}
    assert graph.levels[0] == (None, "PXB", "SYS", "SYS")
    assert graph.p2p[1] == ("OK", None, "OK", "OK")


def _first(library: FakeLibrary, calls: Mapping[str, Any], fields: Mapping[tuple[int, int], Any] | None = None) -> None:
    library.gpus[0].calls.update(calls)
    library.gpus[0].fields.update(fields or {})


@pytest.mark.parametrize(
    ("kind", "address", "peer"),
    [
        (0, "00000000:43:00.0", GPUS[1]),
        (0, "00000001:00:00.0", "gpu:0001:00:00.0"),
        (0, "", None),
        (0, "FFFFFFFF:FFFF:FF.0", None),
        (1, "00000004:04:00.1", "npu:0004:04:00.1"),
        (1, error(NOT_SUPPORTED), None),
        (2, "00000000:C4:00.0", "nvswitch:0000:c4:00.0"),
        (2, "FFFFFFFF:FFFF:FF.0", "nvswitch"),
        (2, "FFFFFFFF:FF:FF.7", "nvswitch"),
        (2, "00000000:00:00.0", "nvswitch"),
        (2, "\x00\n", "nvswitch"),
        (2, error(NOT_SUPPORTED), "nvswitch"),
        (2, error(UNKNOWN), "nvswitch"),
        (255, "00000000:43:00.0", GPUS[1]),  # a GPU of this machine, so it is one
        (255, "00000000:C4:00.0", None),
        (255, "FFFFFFFF:FFFF:FF.0", "nvswitch"),  # as a virtual machine is told
        (error(NOT_SUPPORTED), "FFFFFFFF:FFFF:FF", "nvswitch"),
        (error(NOT_SUPPORTED), "00000000:00:00.0", None),
        (error(UNKNOWN), error(UNKNOWN), None),
        (17, "", None),
    ],
)
def test_what_a_link_ends_at(kind: Any, address: Any, peer: str | None) -> None:
    library = library_of(_bridged())
    where = address if isinstance(address, NvmlError) else {"busId": address}
    _first(library, {f"{TYPE}/2": kind, f"{ADDRESS}/2": where})
    peers = _slow(library)[GPUS[0]]["nvlink_peers"]
    assert peers == (*(GPUS[1],) * 2, peer, GPUS[1], *(GPUS[2],) * 4, *(GPUS[3],) * 4)


def test_a_link_that_goes_down_keeps_its_peer_and_one_that_comes_up_gets_one() -> None:
    library = library_of(_bridged())
    down = {call: error(NOT_SUPPORTED) for call in (f"{TYPE}/0", f"{ADDRESS}/0")}
    up = {call: library.gpus[0].calls[call] for call in down}
    _first(library, down)
    reader = Reader(library, NOWHERE)
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"][:2] == (None, GPUS[1])  # type: ignore[index]
    _first(library, up)
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"][:2] == (GPUS[1],) * 2  # type: ignore[index]
    _first(library, {call: error(UNKNOWN) for call in down})
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"][:2] == (GPUS[1],) * 2  # type: ignore[index]
    assert reader.counts.codes == {UNKNOWN: 2}


def test_a_switch_that_hides_its_address_for_a_while_is_the_same_one() -> None:
    library = library_of(_bridged())
    _first(library, {f"{TYPE}/0": 2, f"{ADDRESS}/0": {"busId": "00000000:C4:00.0"}})
    reader = Reader(library, NOWHERE)
    reader.sweep("slow")
    _first(library, {f"{ADDRESS}/0": error(NOT_SUPPORTED)})
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"][0] == "nvswitch:0000:c4:00.0"  # type: ignore[index]


def test_links_are_absent_while_the_gpu_is_cut_up_and_end_where_they_did_afterwards() -> None:
    library = library_of(_bridged())
    reader = Reader(library, NOWHERE)
    before = reader.sweep("slow")[GPUS[0]]["nvlink_peers"]
    _first(library, {"nvmlDeviceGetMigMode": {"currentMode": 1, "pendingMode": 1}})  # the driver still tells of links
    reader.sweep("medium")
    library.asked.clear()
    row = reader.sweep("slow")[GPUS[0]]
    assert not {"nvlink_peers", "nvlinks_to_switches", "nvlink_speed_bytes_per_second"} & row.keys()
    assert ("GPU-0", ADDRESS) not in library.asked
    assert len(row["common_ancestors"]) == 6  # type: ignore[arg-type]
    _first(library, {"nvmlDeviceGetMigMode": {"currentMode": 0, "pendingMode": 0}, f"{ADDRESS}/0": error(UNKNOWN)})
    reader.sweep("medium")
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"] == before


def test_another_gpu_in_the_slot_has_links_of_its_own() -> None:
    library = library_of(_bridged())
    reader = Reader(library, NOWHERE)
    reader.sweep("slow")
    fresh = library_of(_bridged()).gpus[0]
    fresh.uuid = "GPU-9"
    fresh.calls |= {f"{call}/0": error(NOT_SUPPORTED) for call in (TYPE, ADDRESS)}
    library.gpus[0] = fresh
    assert reader.sweep("slow")[GPUS[0]]["nvlink_peers"][0] is None  # type: ignore[index]


def test_links_past_the_last_one_are_none_and_one_between_keeps_its_number() -> None:
    library = library_of(_bridged())
    _first(library, {f"{call}/{link}": error(INVALID) for call in (TYPE, ADDRESS) for link in (1, 10, 11)})
    peers = _slow(library)[GPUS[0]]["nvlink_peers"]
    assert peers == (GPUS[1], None, *(GPUS[1],) * 2, *(GPUS[2],) * 4, *(GPUS[3],) * 2)


def test_an_old_driver_without_some_calls_tells_the_rest() -> None:
    library = library_of(_bridged())
    gone = ("nvmlDeviceGetModuleId", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryAffinity/0")
    for gpu in library.gpus:
        gpu.calls |= dict.fromkeys(gone, error(NOT_FOUND_CALL))
        gpu.calls |= {f"{call}/{link}": error(NOT_FOUND_CALL) for call in (TYPE, ADDRESS) for link in range(12)}
        gpu.calls |= {f"nvmlDeviceGetP2PStatus/{m}/{n}": error(NOT_FOUND_CALL) for m in range(4) for n in range(4)}
    reader = Reader(library, NOWHERE)
    for _ in range(2):
        row = reader.sweep("slow")[GPUS[0]]
        assert COLUMNS & row.keys() == {
            "nvlinks_to_switches", "nvlink_speed_bytes_per_second", "common_ancestors", "nvml_cpus"
        }  # fmt: skip
    assert reader.counts.errors == 0
    for call in ("nvmlDeviceGetModuleId", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryAffinity"):
        assert library.asked.count(("GPU-0", call)) == 1  # not again


@pytest.mark.parametrize(
    ("fields", "speed", "rejected"),
    [
        ({(90, 0): 25000}, 25e9, 0),
        ({(90, 0): error(NOT_SUPPORTED), (164, 0): 0, (164, 1): 26562}, 26.562e9, 0),  # link 0 is down
        ({(90, 0): 0}, None, 0),  # all links are down: what they can carry nobody knows
        ({(90, 0): error(UNKNOWN)}, None, 0),
        ({(90, 0): error(UNKNOWN), (164, 3): 26562}, 26.562e9, 0),
        ({(90, 0): float("nan")}, None, 0),
        ({(90, 0): 2**63 - 6}, None, 1),
    ],
)
def test_what_a_link_can_carry(fields: dict[tuple[int, int], Any], speed: float | None, rejected: int) -> None:
    library = library_of(_bridged())
    _first(library, {}, fields)
    reader = Reader(library, NOWHERE)
    assert reader.sweep("slow")[GPUS[0]]["nvlink_speed_bytes_per_second"] == speed
    assert reader.counts.columns.total() == rejected


def test_fields_of_links_that_no_driver_knows_are_dropped_after_three_times() -> None:
    library = library_of(_bridged())
    _first(library, {}, {(90, 0): error(NOT_SUPPORTED), (147, 0): error(NOT_SUPPORTED)})
    reader = Reader(library, NOWHERE)
    for _ in range(5):
        row = reader.sweep("slow")[GPUS[0]]
    assert not {"nvlinks_to_switches", "nvlink_speed_bytes_per_second"} & row.keys()
    assert [library.asked.count(("GPU-0", f"field/{kind}")) for kind in (147, 90, 164)] == [3, 3, 36]


def test_links_that_cannot_be_counted_now_are_unknown() -> None:
    library = library_of(_bridged())
    _first(library, {}, {(91, 0): error(UNKNOWN)})
    row = _slow(library)[GPUS[0]]
    assert row["nvlink_peers"] is None
    assert "nvlinks_to_switches" not in row


def test_a_number_of_links_to_switches_that_failed_is_unknown() -> None:
    library = library_of(_bridged())
    _first(library, {}, {(147, 0): error(UNKNOWN)})
    assert _slow(library)[GPUS[0]]["nvlinks_to_switches"] is None


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_each_pair_is_asked_once_and_in_the_slow_sweep_alone() -> None:
    library = library_of(_bridged())
    reader = Reader(library, NOWHERE)
    reader.sweep("fast")
    reader.sweep("medium")
    calls = ("nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus", TYPE, ADDRESS)
    assert not [call for _, call in library.asked if call in calls]
    reader.sweep("slow")
    asked = [call for _, call in library.asked]
    assert [asked.count(call) for call in calls] == [6, 24, 48, 48]


@pytest.mark.parametrize(
    ("answer", "told", "errors", "rejected"),
    [(error(UNKNOWN), None, 1, 0), (7, None, 0, 1), (-1, None, 0, 1), (5, 5, 0, 0)],
)
def test_a_pair_that_errs_is_unknown_and_costs_no_other(answer: Any, told: Any, errors: int, rejected: int) -> None:
    library = library_of(_bridged())
    library.gpus[1].calls["nvmlDeviceGetP2PStatus/2/0"] = answer
    reader = Reader(library, NOWHERE)
    rows = reader.sweep("slow")
    one, two = (subject.partition(":")[2] for subject in GPUS[1:3])
    assert rows[GPUS[1]]["p2p_read"] == ("0000:1b:00.0", 0, two, told, "0000:c3:00.0", 0)
    assert rows[GPUS[2]]["p2p_read"] == ("0000:1b:00.0", 0, one, told, "0000:c3:00.0", 0)
    assert rows[GPUS[1]]["p2p_write"] == ("0000:1b:00.0", 0, two, 0, "0000:c3:00.0", 0)
    assert (reader.counts.errors, reader.counts.columns.total()) == (errors, rejected)


def test_a_pair_that_is_not_supported_is_left_out_and_where_none_is_the_column_is_absent() -> None:
    library = library_of(_bridged())
    library.gpus[0].calls["nvmlDeviceGetTopologyCommonAncestor/1"] = error(NOT_SUPPORTED)
    rows = _slow(library)
    assert rows[GPUS[0]]["common_ancestors"] == ("0000:9d:00.0", 50, "0000:c3:00.0", 50)
    assert rows[GPUS[1]]["common_ancestors"] == ("0000:9d:00.0", 50, "0000:c3:00.0", 50)
    library = FakeLibrary(library.gpus[:2])
    rows = _slow(library)
    assert "common_ancestors" not in rows[GPUS[0]]
    assert rows[GPUS[0]]["p2p_read"] == ("0000:43:00.0", 0)


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_is_lost_while_pairs_are_asked_is_in_none(code: int) -> None:
    library = library_of(_bridged())
    for gpu in library.gpus:
        gpu.calls["nvmlDeviceGetP2PStatus/1/0"] = error(code)
        library.gpus[1].calls[f"nvmlDeviceGetP2PStatus/{gpu.place}/0"] = error(code)
    reader = Reader(library, NOWHERE)
    rows = reader.sweep("slow")
    for column in PAIRED:
        assert column not in rows[GPUS[1]]
        assert "0000:43:00.0" not in rows[GPUS[0]][column]  # type: ignore[operator]
        assert len(rows[GPUS[0]][column]) == 4  # type: ignore[arg-type]
    assert reader.counts.codes == {code: 3}  # one question for each pair, no more


def test_a_lost_gpu_and_a_held_one_are_asked_nothing_of_pairs() -> None:
    library = library_of(_bridged())
    reader = Reader(library, NOWHERE)
    reader.sweep("fast")
    library.asked.clear()
    library.gpus[0].calls["nvmlDeviceGetMinorNumber"] = error(LOST)
    rows = reader.sweep("slow", held=(PciAddress("0000:43:00.0"),))
    assert set(rows) == {GPUS[2], GPUS[3]}
    assert rows[GPUS[2]]["p2p_read"] == ("0000:c3:00.0", 0)
    assert [uuid for uuid, call in library.asked if call == "nvmlDeviceGetP2PStatus"] == ["GPU-2"] * 4
    assert "GPU-1" not in {uuid for uuid, _ in library.asked}


@pytest.mark.parametrize("code", [1, 9])
def test_a_driver_that_goes_while_pairs_are_asked_ends_the_sweep(code: int) -> None:
    library = library_of(_bridged())
    library.gpus[0].calls["nvmlDeviceGetP2PStatus/3/2"] = error(code)
    with pytest.raises(NvmlError) as caught:
        _slow(library)
    assert caught.value.code == code


def test_gpus_that_are_listed_in_another_order_are_in_the_same_pairs(both: Any) -> None:
    recording = _bridged()
    before = _slow(both(recording))
    library = library_of(recording)
    library.gpus.reverse()
    after = _slow(library)
    for subject, row in before.items():
        for column in PAIRED:
            assert set(_pairs(row[column])) == set(_pairs(after[subject][column]))


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(zip(value[::2], value[1::2], strict=True))


# --- processors, memory, fabric --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "cpus", "rejected"),
    [
        ([0xFF, 1], "0-7,64", 0),
        ([2**64 - 1, 2**64 - 1], "0-127", 0),
        ([1 << 63, 0b101], "63-64,66", 0),
        ([0, 0, 0b1011], "128-129,131", 0),
        ([], None, 0),  # a container with processors far from the GPU
        ([0, 0], None, 0),
        ([-1], None, 1),
        ([2**64], None, 1),
        ([1.5], None, 1),
        (7, None, 1),
    ],
)
def test_processors_are_told_as_the_kernel_prints_them(words: Any, cpus: str | None, rejected: int) -> None:
    library = library_of(_bridged())
    _first(library, {"nvmlDeviceGetCpuAffinity": words})
    reader = Reader(library, NOWHERE)
    assert reader.sweep("slow")[GPUS[0]]["nvml_cpus"] == cpus
    assert reader.counts.columns["nvml_cpus"] == rejected


def test_memory_of_a_coherent_gpu_has_a_node(both: Any) -> None:
    recording = _bridged()
    recording["devices"][0]["calls"] |= {
        "nvmlDeviceGetNumaNodeId": 10,
        "nvmlDeviceGetMemoryAffinity": {"0": [1 << 10 | 3]},
    }
    rows = _slow(both(recording))
    assert (rows[GPUS[0]]["gpu_memory_numa_node"], rows[GPUS[0]]["nvml_numa_nodes"]) == (10, "0-1,10")
    assert "gpu_memory_numa_node" not in rows[GPUS[1]]


def test_what_failed_is_unknown_and_asked_again() -> None:
    calls = {
        "nvmlDeviceGetCpuAffinity": "nvml_cpus", "nvmlDeviceGetMemoryAffinity/0": "nvml_numa_nodes",
        "nvmlDeviceGetCudaComputeCapability": "gpu_compute_capability", "nvmlDeviceGetModuleId": "gpu_module_id",
    }  # fmt: skip
    library = library_of(_bridged())
    good = {call: library.gpus[0].calls[call] for call in calls}
    _first(library, dict.fromkeys(calls, error(UNKNOWN)))
    reader = Reader(library, NOWHERE)
    row = reader.sweep("slow")[GPUS[0]]
    assert {name: row[name] for name in calls.values()} == dict.fromkeys(calls.values())
    _first(library, good)
    row = reader.sweep("slow")[GPUS[0]]
    assert [row[name] for name in calls.values()] == ["48-64", "1", "8.0", 1]


CLUSTER = "f8d2a1c0-0000-4000-8000-00000000002a"


@pytest.mark.parametrize(
    ("answer", "columns"),
    [
        ({"state": 0, "status": 0}, {}),
        (
            {"state": 3, "status": 0, "cliqueId": 7, "clusterUuid": CLUSTER},
            {"fabric_cluster": CLUSTER, "fabric_clique": 7},
        ),
        ({"state": 3, "status": 0, "cliqueId": 0, "clusterUuid": "00000000-0000-0000-0000-000000000000"}, {}),
        ({"state": 3, "status": 0, "cliqueId": 0}, {}),
        ({"state": 2, "status": 0, "cliqueId": 9}, {"fabric_cluster": None, "fabric_clique": None}),
        (
            {"state": 3, "status": 999, "cliqueId": 7, "clusterUuid": CLUSTER},
            {"fabric_cluster": None, "fabric_clique": None},
        ),
        ({"error": 999}, {"fabric_cluster": None, "fabric_clique": None}),
        ({"error": 3}, {}),
    ],
)
def test_the_fabric_beyond_the_node(answer: dict[str, Any], columns: dict[str, Any], both: Any) -> None:
    recording = _bridged()
    recording["devices"][0]["calls"]["nvmlDeviceGetGpuFabricInfoV"] = answer
    row = _slow(both(recording))[GPUS[0]]
    assert {name: value for name, value in row.items() if name.startswith("fabric")} == columns


def test_every_column_is_declared_and_makes_no_series(both: Any) -> None:
    recording = _bridged()
    recording["devices"][0]["calls"] |= {
        "nvmlDeviceGetNumaNodeId": 2,
        "nvmlDeviceGetGpuFabricInfoV": {"state": 3, "status": 0, "cliqueId": 1, "clusterUuid": CLUSTER},
    }
    row = _slow(both(recording))[GPUS[0]]
    assert row.keys() >= COLUMNS
    for name in COLUMNS:
        assert (BY_NAME[name].of, BY_NAME[name].exported) == ("gpu", None)
        assert plausible(BY_NAME[name], row[name])
        assert BY_NAME[name].keyed == (name in PAIRED)


# --- a call that hangs -----------------------------------------------------------------------------------------------


def test_a_call_about_two_gpus_is_timed_and_named_while_it_is_under_way() -> None:
    library = library_of(_bridged())
    watch = Stopwatch(library)
    during = []

    def pair(device: Device, peer: Device, call: str, *arguments: int) -> int:
        during.append(watch.current)
        raise NvmlError(UNKNOWN)

    library.pair = pair  # type: ignore[method-assign]
    one, two = library.gpus[:2]
    calls = watch.histogram[7]
    with pytest.raises(NvmlError):
        watch.pair(one, two, "nvmlDeviceGetP2PStatus", 0)
    assert during == ["nvmlDeviceGetP2PStatus"]
    assert watch.current == ""
    assert watch.histogram[7] == calls + 1  # type: ignore[operator]  # also one that failed


def test_the_pair_that_a_child_is_stuck_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    player = _player(_bridged())
    entered, leave = Event(), Event()

    def stuck(device: Device, peer: Device, call: str, *arguments: int) -> int:
        if call == "nvmlDeviceGetP2PStatus":
            entered.set()
            assert leave.wait(5.0)
        return 0

    ours, theirs = socket.socketpair()
    thread = Thread(target=Served(theirs, player, NOWHERE, end=lambda: None).run)
    thread.start()
    unframer = Unframer()

    def ask(request: Request) -> Report:
        ours.sendall(framed(encode(request)))
        message = receive(ours, unframer)
        assert message is not None
        return decode_report(message)

    try:
        assert isinstance(ask(Begin()), Begun)
        monkeypatch.setattr(player, "pair", stuck)
        ours.sendall(framed(encode(Look("slow"))))
        assert entered.wait(5.0)
        assert ask(Doing()) == InCall("nvmlDeviceGetP2PStatus")
    finally:
        leave.set()
        ours.shutdown(socket.SHUT_WR)
        thread.join(5.0)
        ours.close()
        theirs.close()
    assert not thread.is_alive()
