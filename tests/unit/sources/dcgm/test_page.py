"""The page of a dcgm-exporter: old and new names, blanks, drips, pages that are none."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.events import AnyEvent, Batch, Sweep
from gpuguard.model.ids import GpuUuid, PciAddress, SubjectId, gpu
from gpuguard.model.quantities import BY_NAME
from gpuguard.model.readings import Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.dcgm import Settings, build
from gpuguard.sources.dcgm.fields import FIELDS, is_blank
from gpuguard.sources.dcgm.page import MOST_SUBJECTS, Target, fetch, parse_url, rows, samples
from tests.support.machines import copied, gpus, machine

UUID = "GPU-73ab4876-7734-47c1-87fd-e805ec99108d"
OLD = 'gpu="0",UUID="{uuid}",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100",Hostname="n1"'
NEW = 'gpu="0",UUID="{uuid}",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100",hostname="n1"'
HERE = gpu(PciAddress("0000:07:00.0"))


def nobody(uuid: str) -> None:
    return None


def line(name: str, value: str, labels: str = OLD) -> str:
    return f"{name}{{{labels.format(uuid=UUID)}}} {value}\n"


def of(text: str, subject: str = HERE) -> Values:
    return rows(text, nobody).get(SubjectId(subject), {})


@contextmanager
def serving(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """A page whose answer comes in these parts, on loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def answer() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.recv(4096)
                    for part in parts:
                        peer.sendall(part)
                        if pause and done.wait(pause):
                            return
                except OSError:
                    continue  # the reader had enough

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def http(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n\r\n".encode() + body


def test_both_generations_of_names_and_labels_tell_the_same() -> None:
    before = line("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.25") + line("DCGM_FI_DEV_GPU_TEMP", "61")
    since = line("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "0.25", NEW) + line("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "61", NEW)
    assert of(before) == of(since) == {"tensor_active_ratio": 0.25, "temperature_celsius": 61.0}


def test_units_become_base_units() -> None:
    text = (
        line("DCGM_FI_DEV_SM_CLOCK", "1410") + line("DCGM_FI_DEV_POWER_USAGE", "391.125000")
        + line("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "28896000000") + line("DCGM_FI_DEV_GPU_UTIL_RATIO", "98")
        + line("DCGM_FI_DEV_FB_USED", "1024") + line("DCGM_FI_PROF_PCIE_RX_BYTES", "600000000")
    )  # fmt: skip
    assert of(text) == pytest.approx({
        "sm_clock_hertz": 1.41e9, "power_watts": 391.125, "energy_joules_total": 28896000.0, "utilization_ratio": 0.98,
        "memory_used_bytes": 2.0**30, "pcie_rx_bytes_per_second": 6e8,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DCGM_FI_DEV_MEMORY_TEMP", "9223372036854775794"),
        ("DCGM_FI_DEV_MEMORY_TEMP", "2147483632"),
        ("DCGM_FI_DEV_MEMORY_TEMP", "255"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "140737488355328.000000"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "140737488355330.000000"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "9.223372036854776e+18"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "NaN"),
    ],
)
def test_blanks_are_absent(name: str, value: str) -> None:
    assert of(line(name, value) + line("DCGM_FI_DEV_GPU_UTIL", "0")) == {"utilization_ratio": 0.0}


def test_what_cannot_be_is_unknown() -> None:
    assert of(line("DCGM_FI_PROF_SM_ACTIVE", "7.5")) == {"sm_active_ratio": None}


def test_a_counter_may_pass_where_blanks_of_32_bits_are() -> None:
    assert not is_blank(0x80000000)
    assert is_blank(0x7FFFFFF0)
    assert not is_blank(2**47 + 0)
    assert is_blank(float(2**47))
    assert is_blank("<<<NULL>>>")


def test_a_mig_instance_is_a_row_of_its_own() -> None:
    instance = OLD + ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="9"'
    text = line("DCGM_FI_PROF_SM_ACTIVE", "0.5", instance) + line("DCGM_FI_DEV_GPU_TEMP", "40", instance)
    assert rows(text, nobody) == {SubjectId("mig:0000:07:00.0/9"): {"mig_sm_active_ratio": 0.5}}


def test_without_an_address_the_uuid_tells_whose_it_is() -> None:
    old = 'gpu="0",UUID="{uuid}",device="nvidia0",modelName="A, \\"B\\" {{}} \\\\",Hostname="n1"'
    text = line("DCGM_FI_PROF_SM_ACTIVE", "0.5", old)
    assert rows(text, {UUID: PciAddress("0000:0f:00.0")}.get) == {
        gpu(PciAddress("0000:0f:00.0")): {"sm_active_ratio": 0.5}
    }
    assert rows(text, nobody) == {}


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>hello</body></html>\n",
        "DCGM_FI_DEV_GPU_TEMP{gpu=0} 5\n",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0" 5\n',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} warm\n',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"}\n',
        'DCGM_FI_DEV_GPU_TEMP{pci_bus_id="over there"} 5\n',
        line("DCGM_FI_PROF_SM_ACTIVE", "0.5", OLD + ',GPU_I_ID="one"'),
        line("DCGM_FI_PROF_SM_ACTIVE", "0.5", OLD + f',GPU_I_ID="{"9" * 5000}"'),
        line("DCGM_FI_DEV_GPU_TEMP", "9" * 5000),
        line("DCGM_FI_DEV_GPU_TEMP", "1_0"),
        "".join(line("DCGM_FI_DEV_GPU_TEMP", "40", f'pci_bus_id="{n:04x}:01:00.0"') for n in range(MOST_SUBJECTS + 2)),
    ],
)
def test_a_page_of_another_form_is_not_guessed_at(text: str) -> None:
    with pytest.raises(NotUnderstood):
        rows(text, nobody)


def test_only_a_line_feed_ends_a_line() -> None:
    job = OLD + ',job="one\u2028two\x0b"'
    assert of(line("DCGM_FI_DEV_GPU_TEMP", "40", job).replace("\n", "\r\n")) == {"temperature_celsius": 40.0}


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        list(samples(text))
    except NotUnderstood:
        return


def test_the_columns_exist() -> None:
    assert {field.column for field in FIELDS} <= BY_NAME.keys()
    assert len({field.number for field in FIELDS}) == len(FIELDS)


def test_the_list_for_a_dcgm_exporter_is_what_is_looked_for(checkout: Path) -> None:
    """Three columns a line, as dcgm-exporter insists, and every field of ours under the name that all versions know."""
    text = (checkout / "exporters" / "dcgm-exporter" / "counters.csv").read_text()
    lines = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    assert {len(line) for line in lines} == {3}
    kinds = {name.strip(): kind.strip() for name, kind, _ in lines}
    assert {name for name, kind in kinds.items() if kind != "label"} == {field.name for field in FIELDS}
    assert set(kinds.values()) == {"gauge", "counter", "label"}


def test_the_page_is_fetched() -> None:
    body = line("DCGM_FI_PROF_SM_ACTIVE", "0.5").encode()
    with serving(http(body)[:40], http(body)[40:]) as url:
        assert fetch(parse_url(url), 5.0) == body.decode()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    with serving(chunked) as url:
        assert fetch(parse_url(url), 5.0) == "hello"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http(b"no", "503 Service Unavailable"), "answered 503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no answer of HTTP"),
        (b"", "no answer of HTTP"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nshort", "cut off"),
    ],
)
def test_what_is_no_page_is_a_failed_read(answer: bytes, words: str) -> None:
    with serving(answer) as url, pytest.raises(ReadFailed, match=words):
        fetch(parse_url(url), 5.0)


def test_a_page_that_drips_ends_at_the_deadline() -> None:
    began = time.monotonic()
    with serving(*[b"x"] * 1000, pause=0.01) as url, pytest.raises(ReadFailed, match=r"within 0\.1 s"):
        fetch(parse_url(url), 0.1)
    assert time.monotonic() - began < 3.0


def test_a_page_without_end_ends_at_the_limit() -> None:
    with serving(http(b"x" * 100_000)) as url, pytest.raises(ReadFailed, match="larger than 50000"):
        fetch(parse_url(url), 5.0, largest=50_000)


def test_nobody_there_is_a_failed_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ReadFailed, match="cannot be read"):
        fetch(Target("127.0.0.1", port, "/metrics"), 5.0)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/metrics", "127.0.0.1:9400", "http://", "http://u:p@h/", "http://h:x/"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Settings(page=url)


# --- the source over a page --------------------------------------------------------------------------------------


def one_sweep(settings: Settings, root: Path) -> Sweep:
    source = build(settings, root, SystemClock())
    events: list[AnyEvent] = []

    def emit(batch: Batch) -> None:
        events.extend(batch.events)
        source.stop()

    source.run(emit, None)
    (event,) = events
    assert isinstance(event, Sweep)
    return event


def test_the_source_reads_a_page_where_there_is_no_engine() -> None:
    with serving(http(line("DCGM_FI_PROF_SM_ACTIVE", "0.5").encode())) as url:
        assert one_sweep(Settings(hostengine="", page=url), Path("/")).rows == {HERE: {"sm_active_ratio": 0.5}}


@pytest.mark.parametrize(
    ("body", "words"), [(b"# nothing\n", "tells nothing"), (b"<html>\n", "is this a dcgm-exporter")]
)
def test_a_page_of_something_else_makes_it_blind(body: bytes, words: str) -> None:
    with serving(http(body)) as url, pytest.raises(ReadFailed, match=words):
        build(Settings(hostengine="", page=url), Path("/"), SystemClock()).run(lambda batch: None, None)


def test_where_nothing_listens_there_is_no_dcgm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = Settings(hostengine="", page=f"http://127.0.0.1:{port}/metrics")
    with pytest.raises(Absent, match="no DCGM"):
        build(settings, Path("/"), SystemClock()).run(lambda batch: None, None)
    with pytest.raises(Absent):
        build(Settings(hostengine="", page=""), Path("/"), SystemClock()).run(lambda batch: None, None)


def test_a_recorded_machine_shows_its_recorded_page() -> None:
    root = machine("a100x8")
    sweep = one_sweep(Settings(every=Seconds(5.0)), root)
    assert {str(subject) for subject in sweep.rows} == {f"gpu:{address}" for address in gpus(root)}
    for values in sweep.rows.values():
        assert None not in values.values()
        assert {"sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "nvlink_tx_bytes_per_second"} <= set(
            values
        )


def test_an_old_recorded_page_is_joined_by_uuid(tmp_path: Path) -> None:
    root = copied("a100x8", tmp_path)
    page = root / "dcgm-exporter.prom"
    page.write_text("".join(
        text.replace(text[text.index("pci_bus_id=") : text.index("device=")], "") if "pci_bus_id=" in text else text
        for text in page.read_text().splitlines(keepends=True)
    ))  # fmt: skip
    assert one_sweep(Settings(), root).rows == one_sweep(Settings(), machine("a100x8")).rows


def test_a_recorded_machine_without_one_has_no_dcgm() -> None:
    with pytest.raises(Absent, match=r"dcgm-exporter\.prom"):
        build(Settings(), machine("h100x8"), SystemClock()).run(lambda batch: None, None)


def test_the_recorded_page_fits_its_machine() -> None:
    """UUIDs and addresses are those of the machine; its page and its driver do not contradict each other."""
    root = machine("a100x8")
    for sample in samples((root / "dcgm-exporter.prom").read_text()):
        address = sample.labels["pci_bus_id"].lower().removeprefix("0000")
        information = (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
        assert GpuUuid(sample.labels["UUID"]) in information
        assert f"Device Minor: \t {sample.labels['device'].removeprefix('nvidia')}\n" in information
        assert sample.labels["DCGM_FI_DRIVER_VERSION"] in (root / "proc/driver/nvidia/version").read_text()
