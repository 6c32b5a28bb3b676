"""The real nvidia-ml-py runs against the fake library, which says what the recording says, or what it is told to."""

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_nvml import DRIVERS, SYMBOLS, FakeNvml, exported, lacking
from tests.support.fake_nvml.client import ASKED, Client
from tests.support.fake_nvml.small import SMALL, UUIDS
from tests.support.machines import NAMES, machine
from tests.support.require import require

NEWEST = "615"


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require(
        "gcc, libc6-dev or nvidia-nvml-dev", not lacking(), "apt-get install gcc libc6-dev; pip install nvidia-nvml-dev"
    )


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    with FakeNvml(SMALL, driver=NEWEST) as fake:
        yield fake


@pytest.fixture
def client(nvml: FakeNvml) -> Iterator[Client]:
    with Client(nvml) as it:
        yield it


# expression -> what the recording says. g is the list of handles.
ANSWERS: dict[str, Any] = {
    "n.nvmlSystemGetDriverVersion()": DRIVERS[NEWEST][0],
    "n.nvmlSystemGetNVMLVersion()": f"13.{DRIVERS[NEWEST][0]}",
    "n.nvmlSystemGetCudaDriverVersion()": 13050,
    "n.nvmlSystemGetCudaDriverVersion_v2()": 13050,
    "n.nvmlSystemGetProcessName(4711)": "python train.py",
    "n.nvmlSystemGetProcessName(1)": 6,
    "n.nvmlErrorString(15)": "GPU is lost",
    "n.nvmlDeviceGetCount()": 2,
    "n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(1))": UUIDS[1],
    "n.nvmlDeviceGetHandleByIndex(2)": 2,
    f"n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID('{UUIDS[1]}'))": 1,
    "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('0000:9d:00.0'))": 1,
    "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial('1650923000002'))": 1,
    "n.nvmlDeviceGetHandleByUUID('GPU-none')": 6,
    "n.nvmlDeviceGetName(g[0])": "NVIDIA H100 80GB HBM3",
    "n.nvmlDeviceGetSerial(g[1])": "1650923000002",
    "n.nvmlDeviceGetMinorNumber(g[1])": 1,
    "n.nvmlDeviceGetBrand(g[0])": 14,
    "n.nvmlDeviceGetArchitecture(g[0])": 9,
    "n.nvmlDeviceGetPciInfo_v3(g[1])": {
        "busIdLegacy": "0000:9D:00.0", "domain": 0, "bus": 0x9D, "device": 0, "pciDeviceId": 0x233010DE,
        "pciSubSystemId": 0x16C110DE, "busId": "00000000:9D:00.0",
    },
    "filled(n.nvmlDeviceGetPciInfoExt, n.nvmlPciInfoExt_v1_t, g[1], version=0x1000040).bus": 0x9D,
    "n.nvmlDeviceGetCudaComputeCapability(g[0])": [9, 0],
    "n.nvmlDeviceGetVbiosVersion(g[0])": "96.00.74.00.01",
    "n.nvmlDeviceGetInforomImageVersion(g[0])": "G520.0200.00.05",
    "n.nvmlDeviceGetInforomVersion(g[0], 1)": "7.16",
    "n.nvmlDeviceGetBoardId(g[0])": 6912,
    "n.nvmlDeviceGetBoardPartNumber(g[0])": "900-21001-0000-000",
    "n.nvmlDeviceGetModuleId(g[1], n.c_uint())": 2,
    "n.nvmlDeviceGetGspFirmwareVersion(g[0])": "570.124.06",
    "n.nvmlDeviceGetGspFirmwareMode(g[0], n.c_uint(), n.c_uint())": [1, 1],
    "filled(n.nvmlDeviceGetPlatformInfo, n.c_nvmlPlatformInfo_v2_t, g[0]).slotNumber": "\x03",
    "n.nvmlDeviceGetPersistenceMode(g[0])": 1,
    "n.nvmlDeviceGetComputeMode(g[0])": 0,
    "n.nvmlDeviceGetPerformanceState(g[0])": 0,
    "n.nvmlDeviceGetPowerState(g[0])": 0,
    "n.nvmlDeviceGetDisplayMode(g[0])": 0,
    "n.nvmlDeviceGetDisplayActive(g[0])": 0,
    "[n.nvmlDeviceGetClockInfo(g[0], kind) for kind in (0, 1, 2)]": [1980, 1965, 2619],
    "n.nvmlDeviceGetClockInfo(g[0], 3)": 3,
    "n.nvmlDeviceGetMaxClockInfo(g[0], 1)": 1985,
    "n.nvmlDeviceGetClock(g[0], 1, 0)": 1975,
    "n.nvmlDeviceGetApplicationsClock(g[0], 1)": 1976,
    "n.nvmlDeviceGetDefaultApplicationsClock(g[0], 1)": 1977,
    "n.nvmlDeviceGetMaxCustomerBoostClock(g[0], 1)": 1978,
    "n.nvmlDeviceGetCurrentClocksEventReasons(g[0])": 4,
    "n.nvmlDeviceGetCurrentClocksThrottleReasons(g[0])": 4,
    "n.nvmlDeviceGetSupportedClocksEventReasons(g[0])": 0x1FF,
    "n.nvmlDeviceGetSupportedClocksThrottleReasons(g[0])": 0x1FF,
    "n.nvmlDeviceGetEccMode(g[0])": [1, 0],
    "n.nvmlDeviceGetTemperatureV(g[0], 0)": 61,
    "n.nvmlDeviceGetTemperature(g[0], 0)": 61,
    "n.nvmlDeviceGetTemperatureThreshold(g[0], 1)": 89,
    "n.nvmlDeviceGetMarginTemperature(g[0])": 26,
    "n.nvmlDeviceGetPowerUsage(g[0])": 412000,
    "n.nvmlDeviceGetEnforcedPowerLimit(g[0])": 700000,
    "n.nvmlDeviceGetPowerManagementLimit(g[0])": 700001,
    "n.nvmlDeviceGetPowerManagementDefaultLimit(g[0])": 700002,
    "n.nvmlDeviceGetPowerManagementMode(g[0])": 1,
    "n.nvmlDeviceGetPowerManagementLimitConstraints(g[0])": [200000, 700003],
    "n.nvmlDeviceGetTotalEnergyConsumption(g[0]) > 1000000": True,
    "n.nvmlDeviceGetNumFans(g[0])": 1,
    "n.nvmlDeviceGetFanSpeed(g[0])": 3,
    "n.nvmlDeviceGetFanSpeed_v2(g[0], 0)": 30,
    "n.nvmlDeviceGetViolationStatus(g[0], 0)": {"referenceTime": 10, "violationTime": 20},
    "n.nvmlDeviceGetUtilizationRates(g[0])": {"gpu": 98, "memory": 44},
    "n.nvmlDeviceGetEncoderUtilization(g[0])": [1, 167000],
    "n.nvmlDeviceGetDecoderUtilization(g[0])": [2, 167000],
    "n.nvmlDeviceGetMemoryInfo(g[0], version=n.nvmlMemory_v2)": {
        "total": 85520809984, "reserved": 600000000, "free": 64920809984, "used": 20000000000,
    },
    "n.nvmlDeviceGetMemoryInfo(g[0])": {"total": 85520809984, "free": 64920809984, "used": 20600000000},
    "n.nvmlDeviceGetBAR1MemoryInfo(g[0])": {"bar1Total": 137438953472, "bar1Free": 137430000000, "bar1Used": 8953472},
    "n.nvmlDeviceGetMemoryBusWidth(g[0])": 5120,
    "n.nvmlDeviceGetNumGpuCores(g[0])": 16896,
    "[v[:3] for v in fields(g[0], 82, 83, 186)]": [[0, 1, 70], [0, 3, 18446744073709551], [0, 1, 411500]],
    "[v[0] for v in fields(g[0], 30, (165, 0), (165, 2), 309)]": [3, 0, 3, 3],
    "[v[2] for v in fields(g[0], (165, 0), (165, 1))]": [1, 0],
    "fields(g[0], (138, 0xFFFFFFFF))[0][2] > 4096": True,
    "fields(g[0], 220)[0][1::2]": [0, 1.5],
    "n.nvmlDeviceGetTotalEccErrors(g[0], 0, 1)": 5,
    "n.nvmlDeviceGetMemoryErrorCounter(g[0], 1, 0, 2)": 7,
    "filled(n.nvmlDeviceGetSramEccErrorStatus, n.c_nvmlEccSramErrorStatus_v1_t, g[0])": {
        "aggregateUncParity": 1, "aggregateUncSecDed": 0, "aggregateCor": 0, "volatileUncParity": 0,
        "volatileUncSecDed": 0, "volatileCor": 2, "aggregateUncBucketL2": 0, "aggregateUncBucketSm": 0,
        "aggregateUncBucketPcie": 0, "aggregateUncBucketMcu": 0, "aggregateUncBucketOther": 0, "bThresholdExceeded": 1,
    },
    "n.nvmlDeviceGetRetiredPages(g[0], 0)": [4096, 8192],
    "n.nvmlDeviceGetRetiredPages(g[0], 1)": [],
    "len(n.nvmlDeviceGetRetiredPages_v2(g[0], 0))": 2,
    "n.nvmlDeviceGetRetiredPagesPendingStatus(g[0])": 1,
    "n.nvmlDeviceGetRemappedRows(g[0])": [1, 2, 1, 0],
    "filled(n.nvmlDeviceGetRemappedRows_v2, n.c_nvmlRemappedRowsInfo_v2_t, g[0]).uncActiveRemaps": 2,
    "n.nvmlDeviceGetRowRemapperHistogram(g[0])": {"max": 638, "high": 1, "partial": 1, "low": 0, "none": 0},
    # By the header the struct has no version; by nvidia-ml-py it has one, and the flag is read beside its place.
    "n.nvmlDeviceGetUnrepairableMemoryFlag_v1(g[0])": 0,
    "n.nvmlDeviceGetRepairStatus(g[0])": [1, 0],
    "n.nvmlDeviceValidateInforom(g[0])": None,
    "n.nvmlDeviceGetPcieReplayCounter(g[0])": 12,
    "n.nvmlDeviceGetPcieThroughput(g[0], 1)": 5678,
    "n.nvmlDeviceGetCurrPcieLinkGeneration(g[0])": 5,
    "n.nvmlDeviceGetCurrPcieLinkWidth(g[0])": 16,
    "n.nvmlDeviceGetMaxPcieLinkGeneration(g[0])": 4,
    "n.nvmlDeviceGetMaxPcieLinkWidth(g[0])": 8,
    "n.nvmlDeviceGetGpuMaxPcieLinkGeneration(g[0])": 6,
    "n.nvmlDeviceGetPcieSpeed(g[0])": 32000,
    "n.nvmlDeviceGetPcieLinkMaxSpeed(g[0])": 3,
    "[n.nvmlDeviceGetNvLinkState(g[0], link) for link in (0, 1)]": [1, 0],
    "n.nvmlDeviceGetNvLinkVersion(g[0], 0)": 4,
    "n.nvmlDeviceGetNvLinkCapability(g[0], 0, 0)": 1,
    "n.nvmlDeviceGetNvLinkErrorCounter(g[0], 0, 3)": 9,
    "n.nvmlDeviceGetNvLinkRemotePciInfo(g[0], 0).busId": "00000000:05:00.0",
    "n.nvmlDeviceGetNvLinkRemoteDeviceType(g[0], 0)": 2,
    "filled(n.nvmlDeviceGetNvLinkInfo, n.c_nvmlNvLinkInfo_v1_t, g[0], version=0x1000008).isNvleEnabled": 1,
    "n.nvmlDeviceGetTopologyCommonAncestor(g[0], g[1])": 40,
    "[n.nvmlDeviceGetUUID(d) for d in n.nvmlDeviceGetTopologyNearestGpus(g[0], 40)]": [UUIDS[1]],
    "n.nvmlDeviceGetP2PStatus(g[0], g[1], 0)": 5,
    "len(n.nvmlSystemGetTopologyGpuSet(0))": 2,
    "list(n.nvmlDeviceGetCpuAffinity(g[0], 2))": [0xFF, 1],
    "list(n.nvmlDeviceGetCpuAffinityWithinScope(g[0], 1, 1))": [0x0F],
    "list(n.nvmlDeviceGetMemoryAffinity(g[0], 1, 0))": [2],
    "n.nvmlDeviceGetNumaNodeId(g[0])": 3,
    "n.nvmlDeviceGetMigMode(g[0])": 3,
    "n.nvmlDeviceGetMigMode(g[1])": [1, 1],
    "n.nvmlDeviceGetMaxMigDeviceCount(g[1])": 7,
    "n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0))": "MIG-00000000-0000-0000-0000-000000000009",
    "n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 1)": 6,
    "n.nvmlDeviceIsMigDeviceHandle(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0)).value": 1,
    "n.nvmlDeviceIsMigDeviceHandle(g[1]).value": 0,
    "n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle("
    "n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0)))": UUIDS[1],
    "n.nvmlDeviceGetGpuInstanceId(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0))": 9,
    "n.nvmlDeviceGetComputeInstanceId(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0))": 0,
    "n.nvmlDeviceGetAttributes_v2(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0)).memorySizeMB": 9856,
    "n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0), version=n.nvmlMemory_v2).used": 4,
    "n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetMigDeviceHandleByIndex(g[1], 0))": 3,
    **{
        f"n.{function}{version}(g[0])": processes
        for function, processes in (
            ("nvmlDeviceGetComputeRunningProcesses", [
                {"pid": 4711, "usedGpuMemory": 123456, "gpuInstanceId": 0xFFFFFFFF, "computeInstanceId": 0xFFFFFFFF},
            ]),
            ("nvmlDeviceGetGraphicsRunningProcesses", []),
            ("nvmlDeviceGetMPSComputeRunningProcesses", []),
        )
        for version in ("", "_v2", "_v3")
    },
    "[[p.pid, p.smUtil, p.memUtil] for p in n.nvmlDeviceGetProcessUtilization(g[0], 0)]": [[4711, 90, 40]],
    "n.nvmlDeviceGetSupportedEventTypes(g[0])": 0xFFFF,
    "n.nvmlGpmQueryDeviceSupport(g[0]).isSupportedDevice": 1,
}  # fmt: skip


def test_every_function_answers_what_the_recording_says(client: Client) -> None:
    assert {expression: client.ask(expression) for expression in ANSWERS} == ANSWERS


def test_each_function_of_the_list_is_exported_and_asked_for(client: Client) -> None:
    """The library has what symbols.txt says, no more; and no function is there that these tests do not run."""
    listed = {line.split()[1] for line in SYMBOLS.read_text().splitlines() if not line.startswith("#")}
    assert len(listed) >= 112
    for driver in DRIVERS:
        with FakeNvml(SMALL, driver=driver) as fake:
            table = subprocess.run(
                ["nm", "-D", "--defined-only", str(fake.library / "libnvidia-ml.so.1")],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        assert {line.split()[2] for line in table.splitlines()} == set(exported(driver))
    assert set(exported(NEWEST)) == listed
    run = Path(__file__).read_text() + ASKED
    assert {name for name in listed if name not in run and re.sub(r"_v\d$", "", name) not in run} == set()
    # nvidia-ml-py never resolves these; programs in C do.
    silent = {"nvmlInit", "nvmlInit_v2", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlEventSetWait",
              "nvmlDeviceGetHandleByPciBusId"}  # fmt: skip
    assert [client.ask(f"n.nvmlLib['{name}'] is not None") for name in sorted(silent)] == [True] * len(silent)


def test_a_struct_of_the_wrong_version_is_refused(client: Client) -> None:
    wrong = 25
    for expression in (
        "filled(n.nvmlDeviceGetPciInfoExt, n.nvmlPciInfoExt_v1_t, g[0], version=0)",
        "filled(n.nvmlDeviceGetPlatformInfo, n.c_nvmlPlatformInfo_v2_t, g[0], version=2)",
        "filled(n.nvmlDeviceGetSramEccErrorStatus, n.c_nvmlEccSramErrorStatus_v1_t, g[0], version=0x2000068)",
        "filled(n.nvmlDeviceGetNvLinkInfo, n.c_nvmlNvLinkInfo_v1_t, g[0], version=0x1000009)",
        "filled(n.nvmlDeviceGetGpuFabricInfoV, n.c_nvmlGpuFabricInfo_v3_t, g[0], version=0x4000028)",
        "n.nvmlDeviceGetMemoryInfo(g[0], version=0x2000030)",
    ):
        assert client.ask(expression) == wrong, expression
    # The wrappers of nvidia-ml-py give these versions themselves.
    for function, size in (
        ("nvmlDeviceGetTemperatureV", 12), ("nvmlDeviceGetMarginTemperature", 8), ("nvmlDeviceGetRepairStatus", 12),
        ("nvmlDeviceGetProcessesUtilizationInfo", 24), ("nvmlGpmQueryDeviceSupport", 8),
    ):  # fmt: skip
        assert client.ask(f"n.nvmlLib['{function}'](g[0], (ctypes.c_uint * {size})(77))") == wrong, function
    assert client.ask("n.nvmlLib['nvmlGpmMetricsGet']((ctypes.c_uint * 5000)(2))") == wrong


def test_fabric_health_in_its_versions(client: Client) -> None:
    third = client.ask("filled(n.nvmlDeviceGetGpuFabricInfoV, n.c_nvmlGpuFabricInfo_v3_t, g[0], version=0x3000028)")
    assert third == {
        "clusterUuid": list(range(1, 17)), "status": 0, "cliqueId": 7, "state": 3, "healthMask": 0x2AA,
        "healthSummary": 1,
    }  # fmt: skip
    second = client.ask("filled(n.nvmlDeviceGetGpuFabricInfoV, n.c_nvmlGpuFabricInfo_v2_t, g[0], version=0x2000024)")
    assert second == {name: value for name, value in third.items() if name != "healthSummary"}
    first = client.ask("n.nvmlDeviceGetGpuFabricInfo(g[0], ctypes.byref(info := n.c_nvmlGpuFabricInfo_t())) or info")
    assert first["state"] == third["state"]


def test_gpm_is_what_lies_between_two_samples(client: Client) -> None:
    assert client.ask("gpm(g[0], 1, 2, 20, 60)") == [[0, 97.25], [0, 88.0], [0, 1024.5], [3, 0.0]]
    assert client.ask("gpm(g[1], 1, mig=9)") == [[0, 12.5]]
    no_data, invalid = 21, 2
    assert client.ask("gpm(g[1], 1, mig=11)") == no_data
    assert client.ask("gpm(g[1], 1, mig=3)") == invalid
    asked = "(lambda m: [n.nvmlGpmSampleGet(g[0], s) for s in (m.sample{0}, m.sample{1})] and n.nvmlGpmMetricsGet(m))"
    made = "(n.c_nvmlGpmMetricsGet_t(1, 0, n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()))"
    assert client.ask(asked.format(1, 2) + made) != invalid
    assert client.ask(asked.format(2, 1) + made) == invalid
    layout = client.ask("[ctypes.sizeof(n.c_nvmlGpmMetricsGet_t), n.c_nvmlGpmMetric_t.metricInfo.offset]")
    assert layout == [19104, 16]


def test_events_come_once_to_who_waits_and_otherwise_a_timeout(nvml: FakeNvml, client: Client) -> None:
    timeout, whole = 10, 0xFFFFFFFF
    # Recorded half a second after the start; what was before a set was made is not told again.
    first = client.ask("wait(2000)")
    assert first in ([UUIDS[1], 8, 31, 9, 0], timeout)
    began = time.monotonic()
    assert client.ask("wait(100)") == timeout
    assert 0.09 < time.monotonic() - began < 2.0
    client.tell("wait(10000)")
    nvml.event(UUIDS[0], 8, 79)
    assert client.answer() == {"value": [UUIDS[0], 8, 79, whole, whole]}
    assert time.monotonic() - began < 5.0
    nvml.event(1, 0x4000, 0)
    nvml.event("0000:9d:00.0", 8, 63, gi=9, ci=0)
    assert client.ask("wait(1000)") == [UUIDS[1], 0x4000, 0, whole, whole]
    assert client.ask("wait(1000)") == [UUIDS[1], 8, 63, 9, 0]
    assert client.ask("wait(0)") == timeout
    assert client.ask("n.nvmlEventSetFree(events)") is None


def test_what_moves_moves_with_the_clock_and_goes_on_in_the_next_process() -> None:
    with FakeNvml(SMALL, driver=NEWEST, speed=100.0) as nvml:
        energy = "n.nvmlDeviceGetTotalEnergyConsumption(g[0])"
        with Client(nvml) as client:
            first, seen = client.ask(energy), set()
            ends = time.monotonic() + 20
            while seen != {70, 71} and time.monotonic() < ends:
                seen.add(client.ask("n.nvmlDeviceGetTemperatureV(g[1], 0)"))
            assert seen == {70, 71}
            second = client.ask(energy)
        with Client(nvml) as client:
            assert first < second < client.ask(energy)
            nvml.reset_counter("nvmlDeviceGetTotalEnergyConsumption", 0)
            assert client.ask(energy) < second
            nvml.heal()
            nvml.wrap("nvmlDeviceGetTotalEnergyConsumption", 1000)
            assert client.ask(energy) < 1000


def test_each_kind_of_lie_and_failure_can_be_told_and_taken_back(nvml: FakeNvml, client: Client) -> None:
    power = "[n.nvmlDeviceGetPowerUsage(g[0]), n.nvmlDeviceGetPowerUsage(g[1])]"
    nvml.answer("nvmlDeviceGetPowerUsage", 1, device=1)
    assert client.ask(power) == [412000, 1]
    nvml.heal()
    assert client.ask(power) == [412000, 412000]

    unknown = nvml.fail("nvmlDeviceGetPowerUsage", 999, device=0, after=2)
    assert [client.ask("n.nvmlDeviceGetPowerUsage(g[0])") for _ in range(3)] == [412000, 412000, 999]
    assert nvml.hits(unknown) == 3
    nvml.heal(unknown)
    assert client.ask("n.nvmlDeviceGetPowerUsage(g[0])") == 412000

    nvml.fail("field/83", 15)
    nvml.fail("nvmlDeviceGetClockInfo/2", 3)
    assert [v[0] for v in client.ask("fields(g[0], 82, 83)")] == [0, 15]
    assert client.ask("n.nvmlDeviceGetClockInfo(g[0], 1)") == 1965
    assert client.ask("n.nvmlDeviceGetClockInfo(g[0], 2)") == 3
    nvml.heal()

    nvml.answer("gpm/1", math.nan)
    assert math.isnan(client.ask("gpm(g[0], 1)")[0][1])
    nvml.answer("field/83", 2**63 - 6)
    nvml.answer("field/82", 2**47)
    assert [v[2] for v in client.ask("fields(g[0], 83, 82)")] == [2**63 - 6, 2**47 % 2**32]
    nvml.wrong_type("field/82", 3)
    assert client.ask("fields(g[0], 82)")[0][1:3] == [3, 2**47]
    nvml.heal()
    nvml.wrong_type("field/83", 0)
    assert client.ask("fields(g[0], 83)")[0][1::2] == [0, 18446744073709551.0]
    nvml.wrong_type("field/82", 99)
    assert client.ask("fields(g[0], 82)")[0][1] == 99
    nvml.answer("nvmlDeviceGetRemappedRows.isPending", 0)
    assert client.ask("n.nvmlDeviceGetRemappedRows(g[0])") == [1, 2, 0, 0]
    nvml.answer("nvmlDeviceGetTemperatureV/0", -3)
    assert client.ask("n.nvmlDeviceGetTemperature(g[0], 0)") == 2**32 - 3
    assert client.ask("n.nvmlDeviceGetTemperatureV(g[0], 0)") == -3

    nvml.slow("nvmlDeviceGetName", 0.3)
    began = time.monotonic()
    assert client.ask("n.nvmlDeviceGetName(g[0])") == "NVIDIA H100 80GB HBM3"
    assert time.monotonic() - began >= 0.3
    nvml.fail("nvmlInitWithFlags", 9)
    assert client.ask("n.nvmlInit()") == 9


def test_gpus_are_lost_and_come_back_in_another_order(nvml: FakeNvml, client: Client) -> None:
    lost, not_found, reset_required = 15, 6, 16
    now = "[n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]"
    nvml.lose(UUIDS[0])
    assert client.ask("n.nvmlDeviceGetCount()") == 2
    assert client.ask("n.nvmlDeviceGetHandleByIndex(0)") == lost
    assert client.ask("n.nvmlDeviceGetPowerUsage(g[0])") == lost
    assert client.ask("n.nvmlDeviceGetPowerUsage(g[1])") == 412000
    nvml.lose(UUIDS[0], gone=True)
    assert client.ask(now) == [UUIDS[1]]
    assert client.ask("n.nvmlDeviceGetIndex(g[1])") == 0
    assert client.ask(f"n.nvmlDeviceGetHandleByUUID('{UUIDS[0]}')") == not_found
    assert client.ask("n.nvmlDeviceGetPowerUsage(g[0])") == lost
    nvml.give_back(UUIDS[0])
    nvml.reorder([UUIDS[1], UUIDS[0]])
    assert client.ask(now) == [UUIDS[1], UUIDS[0]]
    nvml.want_reset(1)
    assert client.ask("n.nvmlDeviceGetPowerUsage(g[1])") == reset_required
    nvml.heal()
    nvml.swap(0, "GPU-another", serial="77")
    assert client.ask(now) == ["GPU-another", UUIDS[1]]
    assert client.ask("n.nvmlDeviceGetSerial(n.nvmlDeviceGetHandleByUUID('GPU-another'))") == "77"
    nvml.heal()
    assert client.ask(now) == list(UUIDS)


@pytest.mark.parametrize("deep", [False, True], ids=["in the library", "in the kernel"])
def test_a_call_that_hangs_holds_no_lock_of_python_and_ends_by_sigkill_alone(nvml: FakeNvml, deep: bool) -> None:
    with Client(nvml) as client:
        pid = client.process.pid
        fault = nvml.hang("nvmlDeviceGetPowerUsage", device=1, deep=deep)
        assert client.ask("n.nvmlDeviceGetPowerUsage(g[0])") == 412000
        assert client.ask("ticks_while(lambda: n.nvmlDeviceGetPowerUsage(g[1]), 0.5)") > 20
        nvml.heal()  # comes too late for the call that hangs
        assert client.ask("n.nvmlDeviceGetPowerUsage(g[1])") == 412000
        fault = nvml.hang("nvmlDeviceGetPowerUsage", device=1, deep=deep)
        client.tell("n.nvmlDeviceGetPowerUsage(g[1])")
        ends = time.monotonic() + 10
        state = r"State:\s+D" if deep else r"State:\s+S"
        while not (nvml.hits(fault) and re.search(state, Path(f"/proc/{pid}/status").read_text())):
            assert time.monotonic() < ends
            time.sleep(0.01)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            client.process.send_signal(ignored)
        with pytest.raises(subprocess.TimeoutExpired):
            client.process.wait(0.3)
        client.process.kill()
        assert client.process.wait(10) == -signal.SIGKILL


def test_a_call_can_end_the_process(nvml: FakeNvml, client: Client) -> None:
    nvml.crash("nvmlGpmMetricsGet", device=0)
    client.tell("gpm(g[0], 1)")
    assert client.process.wait(10) == -signal.SIGSEGV


def test_calls_are_counted(nvml: FakeNvml, client: Client) -> None:
    watched = nvml.watch("nvmlDeviceGetPowerUsage", device=1)
    before = nvml.calls()
    client.ask("[n.nvmlDeviceGetPowerUsage(g[i]) for i in (0, 1, 1)]")
    assert (nvml.calls() - before, nvml.hits(watched)) == (3, 2)


# function -> the generations that have it
GATED = {
    "n.nvmlDeviceGetMemoryInfo(g[0], version=n.nvmlMemory_v2) and 1": ("535", "570", "580", "615"),
    "n.nvmlGpmQueryDeviceSupport(g[0]).isSupportedDevice": ("535", "570", "580", "615"),
    "n.nvmlDeviceGetCurrentClocksEventReasons(g[0])": ("535", "570", "580", "615"),
    "n.nvmlDeviceGetCurrentClocksThrottleReasons(g[0])": tuple(DRIVERS),
    "n.nvmlDeviceGetTemperatureV(g[0], 0)": ("570", "580", "615"),
    "n.nvmlDeviceGetTemperature(g[0], 0)": tuple(DRIVERS),
    "filled(n.nvmlDeviceGetGpuFabricInfoV, n.c_nvmlGpuFabricInfo_v3_t, g[0], version=0x3000028) and 1": (
        "570", "580", "615",
    ),
    "len(n.nvmlDeviceGetRepairStatus(g[0]))": ("580", "615"),
    "n.nvmlDeviceGetUnrepairableMemoryFlag_v1(g[0]) + 1": ("615",),
    "len(n.nvmlDeviceGetComputeRunningProcesses_v2(g[0]))": tuple(DRIVERS),
}  # fmt: skip


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_older_driver_lacks_what_came_later(driver: str) -> None:
    function_not_found, not_supported = 13, 3
    with FakeNvml(SMALL, driver=driver) as nvml, Client(nvml) as client:
        assert client.ask("n.nvmlSystemGetDriverVersion()").startswith(driver)
        for expression, generations in GATED.items():
            answer = client.ask(expression)
            assert (answer == function_not_found) == (driver not in generations), (expression, answer)
        # The unversioned names mean the third version to nvidia-ml-py, and what it raises is no NVMLError.
        listed = client.ask("n.nvmlDeviceGetComputeRunningProcesses(g[0])")
        assert listed == "mismatch" if driver == "470" else len(listed) == 1
        # Field 186 came with 535; an older driver says of this field alone that it is not supported.
        assert [v[0] for v in client.ask("fields(g[0], 82, 186)")] == [0, not_supported if driver == "470" else 0]


def test_without_a_generation_the_recording_says_which() -> None:
    with FakeNvml(SMALL) as nvml:
        assert nvml.driver == "570"


def test_after_the_last_shutdown_nothing_is_answered(client: Client) -> None:
    uninitialized = 1
    assert client.ask("n.nvmlInit() or n.nvmlShutdown() or n.nvmlDeviceGetCount()") == 2
    assert client.ask("n.nvmlShutdown()") is None
    assert client.ask("n.nvmlDeviceGetCount()") == uninitialized
    assert client.ask("n.nvmlInit() or n.nvmlDeviceGetCount()") == 2


@pytest.mark.parametrize("name", NAMES)
def test_each_recorded_machine_that_ships_can_be_played(name: str) -> None:
    recording = json.loads((machine(name) / "nvml.json").read_text())
    parts = [
        recording["all"],
        *recording["devices"],
        *(part for d in recording["devices"] for part in d.get("mig", ())),
    ]
    asked = set(recording["system"]).union(*(part.get("calls", {}) for part in parts))
    assert asked <= set(exported(NEWEST))
    with FakeNvml(machine(name)) as nvml, Client(nvml) as client:
        assert client.ask("n.nvmlSystemGetDriverVersion()") == recording["system"]["nvmlSystemGetDriverVersion"]
        assert client.ask("[n.nvmlDeviceGetUUID(device) for device in g]") == [d["uuid"] for d in recording["devices"]]
