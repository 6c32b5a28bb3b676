"""Samples on disk: as they were read for a day, by the minute for a month, within bounds."""

import math
import random
import zlib
from pathlib import Path

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.model.samples import Stretch
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.reader import open_reader
from gpuguard.store.retention import Settings
from gpuguard.store.samples import condense, pack, unpack, used_bytes
from gpuguard.store.sqlite import SqliteStore, open_store

NOON = 1_750_003_200.0  # a whole hour
NAMES = (
    "power_watts", "temperature_celsius", "memory_temperature_celsius", "sm_clock_hertz", "utilization_ratio",
    "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio", "memory_used_bytes",
    "pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second",
)  # fmt: skip


def minute(gpu: str, start: float, every: float = 5.0, dice: random.Random | None = None) -> Stretch:
    """A minute of a GPU, every value noise: the worst that compression can meet."""
    dice = dice or random.Random(int(start))
    offsets = tuple(every * n for n in range(int(60 / every)))
    return Stretch(
        gpu=gpu, grain="full", start=start, offsets=offsets,
        columns={name: tuple(dice.uniform(0.0, 700.0) for _ in offsets) for name in NAMES},
    )  # fmt: skip


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc=NOON)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> SqliteStore:
    return open_store(tmp_path / "gpuguard.db", clock=clock).store


def test_a_stretch_comes_back_as_it_was() -> None:
    told = Stretch(
        gpu="GPU-1", grain="full", start=NOON, offsets=(0.0, 5.0), columns={"power_watts": (300.5, math.nan)}
    )
    back = unpack("GPU-1", "full", NOON, pack(told))
    assert back.offsets == (0.0, 5.0)
    assert back.columns["power_watts"][0] == 300.5
    assert math.isnan(back.columns["power_watts"][1])


@pytest.mark.parametrize("body", [b"", b"garbage", pack(minute("GPU-1", NOON))[:-3]])
def test_a_body_that_cannot_be_read_says_so(body: bytes) -> None:
    with pytest.raises(NotUnderstood):
        unpack("GPU-1", "full", NOON, body)


def test_a_minute_is_its_mean_lowest_and_highest() -> None:
    first = Stretch(gpu="G", grain="full", start=NOON + 5, offsets=(0.0, 1.0), columns={"power_watts": (100.0, 300.0)})
    second = Stretch(gpu="G", grain="full", start=NOON + 60, offsets=(0.0,), columns={"power_watts": (math.nan,)})
    made = condense([second, first])
    assert made is not None
    assert (made.start, made.offsets) == (NOON, (5.0, 60.0))
    assert made.columns["power_watts"][0] == 200.0
    assert (made.columns["power_watts.low"][0], made.columns["power_watts.high"][0]) == (100.0, 300.0)
    assert math.isnan(made.columns["power_watts"][1])
    assert condense([]) is None


def test_an_hour_that_is_over_gets_its_minutes(store: SqliteStore, clock: ManualClock) -> None:
    for number in range(61):
        store.keep_samples([minute("GPU-1", NOON + 60.0 * number)])
        clock.advance(60.0)
    (hour,) = store.samples("GPU-1", "minute", 0.0, 2e9)
    assert hour.start == NOON
    assert len(hour.offsets) == 60
    assert len(store.samples("GPU-1", "full", NOON, NOON + 3600.0)) == 60


def test_after_a_day_only_the_minutes_stay(store: SqliteStore, clock: ManualClock) -> None:
    store.keep_samples([minute("GPU-1", NOON)])
    clock.advance(3601.0)
    store.keep_samples([minute("GPU-1", NOON + 3600.0)])
    clock.advance(86400.0)
    store.keep_samples([minute("GPU-1", NOON + 90000.0)])
    assert [s.start for s in store.samples("GPU-1", "full", 0.0, 2e9)] == [NOON + 90000.0]
    assert NOON in [s.start for s in store.samples("GPU-1", "minute", 0.0, 2e9)]


def test_a_clock_that_jumps_ahead_does_not_take_a_day_with_it(store: SqliteStore, clock: ManualClock) -> None:
    for number in range(600):
        store.keep_samples([minute("GPU-1", NOON + 60.0 * number, every=30.0)])
    clock.advance(1e9)
    store.keep_samples([minute("GPU-1", NOON + 36_000.0)])
    assert len(store.samples("GPU-1", "full", 0.0, 2e9)) > 500


def test_the_oldest_go_when_the_room_is_used_up(tmp_path: Path, clock: ManualClock) -> None:
    settings = Settings(samples_bytes=1024 * 1024)  # type: ignore[arg-type]  # a NewType of int
    store = open_store(tmp_path / "gpuguard.db", clock=clock, settings=settings).store
    for number in range(1400):
        store.keep_samples([minute("GPU-1", NOON + number, every=5.0)])
    assert used_bytes(store._connection) <= 1.1 * 1024 * 1024
    kept = store.samples("GPU-1", "full", 0.0, 2e9)
    assert kept[-1].start == NOON + 1399
    assert kept[0].start > NOON


def test_a_reader_beside_the_agent_sees_them(tmp_path: Path, store: SqliteStore) -> None:
    store.keep_samples([minute("GPU-1", NOON), minute("GPU-2", NOON)])
    reader = open_reader(tmp_path / "gpuguard.db")
    assert len(reader.samples("GPU-2", "full", NOON, NOON + 60.0)) == 1
    assert reader.samples("GPU-3", "full", NOON, NOON + 60.0) == ()
    reader.close()


def test_what_is_kept_takes_no_more_than_two_hundred_megabytes(tmp_path: Path, clock: ManualClock) -> None:
    """Eight GPUs of pure noise, the full rate of a day at one sweep in 5 s and thirty days of minutes, scaled from an
    hour of each."""
    store = open_store(tmp_path / "gpuguard.db", clock=clock).store
    for number in range(61):
        store.keep_samples([minute("GPU-1", NOON + 60.0 * number)])
        clock.advance(60.0)
    count = store._connection.execute
    full = count("SELECT sum(bytes) FROM samples WHERE grain = 'full'").fetchone()[0] / 61 * 60
    hour = count("SELECT sum(bytes) FROM samples WHERE grain = 'minute'").fetchone()[0]
    assert 8 * (24 * full + 30 * 24 * hour) < 120 * 1024 * 1024
    pages, size = (count(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    assert pages * size < 1.5 * (full + hour) + 400_000
    defaults = Settings()
    assert defaults.samples_bytes + defaults.max_bytes < 200e6


@pytest.mark.parametrize("body", [b"\x00garbage", b"", "text", 5, 2.5, zlib.compress(b"\x93\x90\xc4\x03abc\x90")])
def test_a_damaged_row_is_a_gap_and_costs_nothing_else(store: SqliteStore, clock: ManualClock, body: object) -> None:
    for number in range(60):
        store.keep_samples([minute("GPU-1", NOON + 60.0 * number)])
        clock.advance(60.0)
    store._connection.execute("UPDATE samples SET body = ? WHERE start_utc = ?", (body, NOON + 600.0))
    assert len(store.samples("GPU-1", "full", NOON, NOON + 3600.0)) == 59
    store._connection.execute("UPDATE samples SET body = ? WHERE start_utc >= ?", (body, NOON + 1800.0))
    for number in range(3):
        store.keep_samples([minute("GPU-1", NOON + 3600.0 + 60.0 * number)])
        clock.advance(60.0)
    (hour,) = store.samples("GPU-1", "minute", 0.0, 2e9)
    assert len(hour.offsets) == 29
    assert len(store.samples("GPU-1", "full", NOON + 3600.0, 2e9)) == 3


def test_an_hour_of_which_nothing_can_be_read_holds_up_no_later_one(store: SqliteStore, clock: ManualClock) -> None:
    store.keep_samples([minute("GPU-1", NOON)])
    store._connection.execute("UPDATE samples SET body = 'text'")
    clock.advance(3600.0)
    store.keep_samples([minute("GPU-1", NOON + 3600.0)])
    clock.advance(3600.0)
    for _ in range(3):
        store.keep_samples([minute("GPU-1", NOON + 7200.0)])
    assert [hour.start for hour in store.samples("GPU-1", "minute", 0.0, 2e9)] == [NOON + 3600.0]
