"""A host engine through a child process: what it tells, and that nothing it does reaches the agent."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.events import AnyEvent, Batch, Sweep
from gpuguard.model.ids import NODE, PciAddress, SubjectId, gpu
from gpuguard.model.readings import Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.dcgm import Dcgm, Settings, build
from gpuguard.sources.dcgm.engine import BINDINGS, Address, find_bindings

FAKE = Path(__file__).resolve().parents[3] / "support" / "fake_pydcgm"
GPUS = [
    {
        "pci": "00000000:07:00.0",
        "uuid": "GPU-73ab4876-7734-47c1-87fd-e805ec99108d",
        "values": {"1002": 0.91, "1004": 0.42, "1009": 1_500_000, "150": 62, "155": 391.5, "252": 40960, "253": 600},
    },
    {"pci": "00000000:0F:00.0", "uuid": "GPU-2f45e678-309d-4b79-965e-da32dae44550", "values": {"1002": 0.0}},
]


class Told:
    """A story for the fake bindings, and an engine's port that takes connections."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "story.json"
        self._listener = socket.create_server(("127.0.0.1", 0))
        monkeypatch.setenv("FAKE_DCGM", str(self._file))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.tell()

    def tell(self, **story: object) -> None:
        self._file.write_text(json.dumps({"gpus": GPUS, **story}))

    def source(self, **settings: object) -> Dcgm:
        known: dict[str, object] = {
            "hostengine": self.address, "bindings": str(FAKE), "page": "", "every": Seconds(5.0),
            "deadline": Seconds(20.0), **settings,
        }  # fmt: skip
        return build(Settings(**known), Path("/"), SystemClock())  # type: ignore[arg-type]

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    story = Told(tmp_path, monkeypatch)
    yield story
    story.close()


def first_sweep(source: Dcgm) -> Sweep:
    """What the source says first; it is stopped then."""
    events: list[AnyEvent] = []

    def emit(batch: Batch) -> None:
        events.extend(batch.events)
        source.stop()

    source.run(emit, None)
    assert len(events) == 1
    assert isinstance(events[0], Sweep)
    return events[0]


def row(sweep: Sweep, pci: str) -> Values:
    return sweep.rows[gpu(PciAddress(pci))]


@pytest.mark.parametrize("version", [3, 4])
def test_values_are_in_base_units_and_zero_is_a_value(told: Told, version: int) -> None:
    told.tell(version=version)
    sweep = first_sweep(told.source())
    assert (sweep.source, sweep.rate, sweep.valid_for) == ("dcgm", "fast", 15.0)
    reserved = {} if version == 3 else {"memory_reserved_bytes": 600 * 2**20}
    assert row(sweep, "0000:07:00.0") == {
        "sm_active_ratio": 0.91, "tensor_active_ratio": 0.42, "pcie_tx_bytes_per_second": 1_500_000.0,
        "temperature_celsius": 62.0, "power_watts": 391.5, "memory_used_bytes": 40960.0 * 2**20, **reserved,
    }  # fmt: skip
    assert row(sweep, "0000:0f:00.0") == {"sm_active_ratio": 0.0}


def test_blanks_and_old_values_are_absent(told: Told) -> None:
    gpus = [{**GPUS[0], "values": {"1002": 2.0**47, "150": 9223372036854775794, "155": 300.0, "1004": 0.5}}]
    told.tell(gpus=gpus, blank=[1004])
    assert row(first_sweep(told.source()), "0000:07:00.0") == {"power_watts": 300.0}


def test_an_engine_that_tells_nothing_new_is_no_engine(told: Told) -> None:
    told.tell(age=100.0)
    lived: list[Batch] = []
    with pytest.raises(ReadFailed, match="tells nothing of any GPU"):
        told.source(every=Seconds(0.1)).run(lived.append, None)
    assert [batch.events for batch in lived] == [(), (), ()]


def test_an_instance_of_a_cut_gpu_is_a_row_of_its_own(told: Told) -> None:
    told.tell(instances=[{"gpu": 1, "id": 9, "values": {"1002": 0.75, "252": 1024, "150": 40}}])
    rows = first_sweep(told.source()).rows
    assert rows[SubjectId("mig:0000:0f:00.0/9")] == {"mig_sm_active_ratio": 0.75, "mig_memory_used_bytes": 2.0**30}
    assert rows[gpu(PciAddress("0000:0f:00.0"))] == {"sm_active_ratio": 0.0}


def test_whether_it_profiles_is_told(told: Told) -> None:
    assert first_sweep(told.source()).rows[NODE] == {"dcgm_profiling": 1}
    assert NODE not in first_sweep(told.source(profiling=False)).rows
    for trouble in ("no_profiling", "profiling_lost"):
        told.tell(trouble=trouble)
        node = first_sweep(told.source()).rows[NODE]
        assert node["dcgm_profiling"] == 0
        assert "module that is not loaded" in str(node["dcgm_profiling_trouble"])


@pytest.mark.parametrize(
    ("trouble", "seen"),
    [
        ("no_profiling", {"temperature_celsius", "power_watts", "memory_used_bytes", "memory_reserved_bytes"}),
        (
            "few_counters",
            {
                "temperature_celsius", "power_watts", "memory_used_bytes", "memory_reserved_bytes", "sm_active_ratio",
                "tensor_active_ratio", "pcie_tx_bytes_per_second",
            },
        ),
    ],
)  # fmt: skip
def test_without_all_counters_the_rest_is_told(told: Told, trouble: str, seen: set[str]) -> None:
    told.tell(trouble=trouble)
    assert set(row(first_sweep(told.source()), "0000:07:00.0")) == seen


@pytest.mark.parametrize(
    ("trouble", "words"),
    [("refused", "disconnected"), ("disconnected", "disconnected"), ("crash", "SIGABRT")],
)
def test_its_trouble_is_a_failed_read_and_nothing_else(told: Told, trouble: str, words: str) -> None:
    told.tell(trouble=trouble)
    with pytest.raises(ReadFailed, match=words):
        told.source().run(lambda batch: None, None)


def test_one_that_hangs_is_left_behind_and_the_next_one_is_well(told: Told) -> None:
    told.tell(trouble="hang")
    source = told.source(deadline=Seconds(0.5))
    with pytest.raises(ReadFailed, match=r"did not answer within 0\.5 s"):
        source.run(lambda batch: None, None)
    told.tell()
    well = told.source()
    assert row(first_sweep(well), "0000:07:00.0")["sm_active_ratio"] == 0.91


def test_while_one_that_was_left_behind_hangs_on_no_other_is_started(told: Told) -> None:
    """In uninterruptible sleep not even SIGKILL ends it; here it just has not ended yet."""

    class Stuck:
        pid = 4711

        def gone(self) -> bool:
            return False

    source = told.source()
    source._abandoned = Stuck()  # type: ignore[assignment]
    with pytest.raises(ReadFailed, match="4711"):
        source.run(lambda batch: None, None)


def test_after_a_failed_engine_the_page_is_tried_first(told: Told) -> None:
    told.tell(trouble="refused")
    with socket.create_server(("127.0.0.1", 0)) as page:
        source = told.source(page=f"http://127.0.0.1:{page.getsockname()[1]}/metrics", deadline=Seconds(5.0))
        with pytest.raises(ReadFailed, match="nv-hostengine"):
            source.run(lambda batch: None, None)
        source._settings = Settings(
            hostengine=told.address, bindings=str(FAKE), page=source._settings.page, deadline=Seconds(0.05)
        )
        with pytest.raises(ReadFailed, match="http://"):
            source.run(lambda batch: None, None)


def test_bindings_that_do_not_load_are_named(told: Told, tmp_path: Path) -> None:
    (tmp_path / "pydcgm.py").write_text("import libdcgm_that_is_not_there\n")
    with pytest.raises(ReadFailed, match="libdcgm_that_is_not_there"):
        told.source(bindings=str(tmp_path)).run(lambda batch: None, None)


def test_without_bindings_or_without_an_engine_there_is_none(told: Told, tmp_path: Path) -> None:
    with pytest.raises(Absent):
        told.source(bindings=str(tmp_path)).run(lambda batch: None, None)
    with pytest.raises(Absent):
        told.source(hostengine=f"unix://{tmp_path}/none.sock").run(lambda batch: None, None)
    with pytest.raises(Absent):
        told.source(hostengine="").run(lambda batch: None, None)


def test_a_unix_socket_is_an_address_too(told: Told, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        assert first_sweep(told.source(hostengine=f"unix://{tmp_path}/engine.sock")).rows


def test_the_newest_installation_is_taken(tmp_path: Path) -> None:
    four, three = tmp_path / "4", tmp_path / "3"
    three.mkdir()
    (three / "pydcgm.py").touch()
    assert find_bindings("", (str(four), str(three))) == str(three)
    four.mkdir()
    (four / "pydcgm.py").touch()
    assert find_bindings("", (str(four), str(three))) == str(four)
    assert find_bindings(str(tmp_path), (str(four),)) is None
    assert all(os.path.isabs(folder) for folder in BINDINGS)


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":5555", "localhost:70000", "unix://run/x", "tcp:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address(text)
