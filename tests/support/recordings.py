"""The recorded machines that ship, made again: `python -m tests.support.recordings [MACHINE...]`.

A machine's folder tells addresses, UUIDs, minor numbers, firmware and serial numbers already (proc/driver/nvidia,
sys/bus/pci, dev/kmsg); from these and a product's table in `tests/support/products.py` the answers of NVML
(`nvml.json`) and the files of the host's sources (`tests/support/host_files.py`) are written. The same folder gives the
same bytes.
"""

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuguard.sweeping.links import Links
from tests.support import products
from tests.support.host_files import HOSTS, write_host
from tests.support.host_wiring import write_wiring
from tests.support.machines import NAMES, NODES, gpus
from tests.support.products import Product

Json = dict[str, Any]  # Any: what JSON holds

EVERY = 5.0  # seconds between two passes
PASSES = 12
WHOLE = 4294967295  # NVML's "no instance", and the scope of all links
ORIGIN = (
    "made by us: limits, clocks, sizes and links from public product data sheets and public nvidia-smi outputs; "
    "readings invented within them; UUIDs, serials, pids belong to nobody"
)
# Spread over the eight GPUs so that no two rows of a table look alike; what a position in a chassis does.
WARMER = (0, 3, 1, 4, 2, 5, 1, 3)
LOST = 15  # NVML_ERROR_GPU_IS_LOST
NO_P2P = 5  # NVML_P2P_STATUS_NOT_SUPPORTED
ONE_SWITCH, SWITCHES, HOST_BRIDGE, SAME_NODE, SYSTEM = 10, 20, 30, 40, 50  # nvmlGpuTopologyLevel_t
NOT_SUPPORTED = 3


def series(middle: float, spread: float, shift: int, digits: int = 0) -> Json:
    """Values that move around `middle` by at most `spread`, and come back: their mean is `middle`."""
    wave = (0.0, 0.6, 0.9, 0.4, -0.2, -0.7, -1.0, -0.6, -0.1, 0.5, 0.4, -0.2)
    values = [round(middle + spread * wave[(n + shift) % PASSES], digits) for n in range(PASSES)]
    return {"series": [int(value) if digits == 0 else value for value in values]}


def running(start: float, per_second: float) -> Json:
    return {"from": start, "per_second": per_second}


def identities(root: Path) -> Iterable[Json]:
    """Address, UUID, minor number and firmware of each GPU, as the driver's own files tell them."""
    log = (root / "dev/kmsg").read_text()
    for index, address in enumerate(gpus(root)):
        information = (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
        pairs = (line.partition(":") for line in information.splitlines())
        told = {key.strip(): value.strip() for key, _, value in pairs}
        serial = re.search(rf"GPU at PCI:{address[:-2]}: GPU-[0-9a-f-]+\n.*Serial Number: (\d+)", log)
        invented = 1650000000000 + uuid.UUID(told["GPU UUID"][4:]).int % 10**9
        near = root / "sys/bus/pci/devices" / address
        yield {
            "cpus": (near / "local_cpulist").read_text(), "node": int((near / "numa_node").read_text()),
            "index": index, "address": address, "uuid": told["GPU UUID"], "minor": int(told["Device Minor"]),
            "vbios": told["Video BIOS"], "name": told["Model"], "gsp": told.get("GPU Firmware"),
            "serial": serial.group(1) if serial else str(invented),
        }  # fmt: skip


def driver(root: Path) -> str:
    """The version of the driver, as proc/driver/nvidia/version tells it."""
    found = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", (root / "proc/driver/nvidia/version").read_text())
    assert found is not None
    return found.group(1)


def mask(text: str) -> list[int]:
    """The words of a bit mask whose bits are a list as the kernel prints it."""
    bits = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        bits |= sum(1 << number for number in range(int(first), int(last or first) + 1))
    return [bits >> place & 2**64 - 1 for place in range(0, bits.bit_length(), 64)]


def ancestor(root: Path, one: Json, other: Json) -> int:
    """nvmlGpuTopologyLevel_t of two GPUs, from where they hang on the kernel's tree where the machine has one."""
    links = Links(root)
    paths = [links.target(f"sys/bus/pci/devices/{who['address']}") or "" for who in (one, other)]
    above = [path.split("/")[2:-1] for path in paths if path]
    if len(above) == 2 and above[0][0] == above[1][0]:
        common = sum(1 for left, right in zip(*above, strict=False) if left == right)
        return HOST_BRIDGE if common == 1 else ONE_SWITCH if common + 1 >= max(map(len, above)) else SWITCHES
    return SAME_NODE if one["node"] == other["node"] else SYSTEM


def place(root: Path, everyone: list[Json], who: Json) -> Json:
    """What a GPU answers about where it is: processors and memory near it, and what it has in common with those that
    come after it."""
    later = everyone[who["index"] + 1 :]
    calls: Json = {
        "nvmlDeviceGetCpuAffinity": mask(who["cpus"]), "nvmlDeviceGetMemoryAffinity": {"0": mask(str(who["node"]))},
    }  # fmt: skip
    if later:
        calls["nvmlDeviceGetTopologyCommonAncestor"] = {
            str(other["index"]): ancestor(root, who, other) for other in later
        }
    return calls


def shared(product: Product, count: int) -> Json:
    """What every GPU of the product answers alike, where there are so many of it."""
    links = range(product.links)
    memory = product.memory_mib << 20
    calls: Json = {
        "nvmlDeviceGetName": product.name,
        "nvmlDeviceGetBrand": 14,
        "nvmlDeviceGetArchitecture": product.architecture,
        "nvmlDeviceGetCudaComputeCapability": {"major": product.compute[0], "minor": product.compute[1]},
        "nvmlDeviceGetPciInfo_v3": {
            "pciDeviceId": product.device << 16 | 0x10DE, "pciSubSystemId": product.subsystem << 16 | 0x10DE,
        },
        "nvmlDeviceGetInforomImageVersion": product.inforom,
        "nvmlDeviceGetInforomVersion": {"0": "2.1", "1": product.inforom_ecc, "2": "N/A"},
        "nvmlDeviceValidateInforom": 0,
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetPerformanceState": 0,
        "nvmlDeviceGetMaxClockInfo": {
            "0": product.sm_mhz, "1": product.sm_mhz, "2": product.memory_mhz, "3": product.video_mhz
        },
        "nvmlDeviceGetApplicationsClock": {
            "0": product.sm_mhz, "1": product.sm_mhz, "2": product.memory_mhz
        },
        "nvmlDeviceGetCurrentClocksEventReasons": 0,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0,
        "nvmlDeviceGetSupportedClocksEventReasons": 0x1FF,
        "nvmlDeviceGetTemperatureThreshold": {
            "0": product.shutdown_c, "1": product.slowdown_c, "3": product.operating_c,
            **({"2": product.memory_c} if product.memory_c else {}),
        },
        "nvmlDeviceGetEnforcedPowerLimit": product.watts * 1000,
        "nvmlDeviceGetPowerManagementLimit": product.watts * 1000,
        "nvmlDeviceGetPowerManagementDefaultLimit": product.watts * 1000,
        "nvmlDeviceGetPowerManagementLimitConstraints": {
            "minLimit": product.least_watts * 1000, "maxLimit": product.watts * 1000
        },
        "nvmlDeviceGetEncoderUtilization": {"utilization": 0, "samplingPeriodUs": 167000},
        "nvmlDeviceGetDecoderUtilization": {"utilization": 0, "samplingPeriodUs": 167000},
        "nvmlDeviceGetBAR1MemoryInfo": {
            "bar1Total": product.bar1_mib << 20, "bar1Free": (product.bar1_mib - 9) << 20, "bar1Used": 9 << 20
        },
        "nvmlDeviceGetEccMode": {"current": 1, "pending": 1},
        "nvmlDeviceGetTotalEccErrors": {f"{kind}/{counter}": 0 for kind in (0, 1) for counter in (0, 1)},
        "nvmlDeviceGetMemoryErrorCounter": {
            f"{kind}/{counter}/{place}": 0 for kind in (0, 1) for counter in (0, 1) for place in (2, 7)
        },
        "nvmlDeviceGetRemappedRows": {"corrRows": 0, "uncRows": 0, "isPending": 0, "failureOccurred": 0},
        "nvmlDeviceGetRowRemapperHistogram": {
            "max": product.banks, "high": 0, "partial": 0, "low": 0, "none": 0
        },
        "nvmlDeviceGetPcieReplayCounter": 0,
        "nvmlDeviceGetCurrPcieLinkGeneration": product.pcie,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkGeneration": product.pcie,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": product.pcie,
        "nvmlDeviceGetMaxMigDeviceCount": 7 if product.mig else 0,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": [],
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": [],
        "nvmlDeviceGetSupportedEventTypes": product.events,
        "nvmlDeviceGetFanSpeed": {"error": NOT_SUPPORTED},
        "nvmlDeviceGetNumFans": 0,
    }  # fmt: skip
    if product.driver >= 550:
        calls["nvmlDeviceGetSramEccErrorStatus"] = dict.fromkeys(products.SRAM_STATUS, 0)
    if product.mig:
        calls["nvmlDeviceGetMigMode"] = {"currentMode": 0, "pendingMode": 0}
    if product.fabric:
        calls["nvmlDeviceGetGpuFabricInfoV"] = {
            "state": 3, "status": 0, "cliqueId": 0, "healthMask": product.fabric_mask, "healthSummary": 1,
            "clusterUuid": str(uuid.UUID(int=0)),
        }  # fmt: skip
    if product.links:
        calls["nvmlDeviceGetNvLinkState"] = {str(link): 1 for link in links}
        calls["nvmlDeviceGetNvLinkVersion"] = {str(link): product.link_version for link in links}
        calls["nvmlDeviceGetNvLinkRemoteDeviceType"] = {str(link): 2 for link in links}
        if product.switches:
            calls["nvmlDeviceGetNvLinkRemotePciInfo_v2"] = {
                str(link): {"busId": f"0000{product.switches[link * len(product.switches) // product.links]}".upper()}
                for link in links
            }
        if product.architecture < 10:
            calls["nvmlDeviceGetNvLinkErrorCounter"] = {f"{link}/{kind}": 0 for link in links for kind in range(4)}
    # nvmlGpuP2PStatus_t by place and nvmlGpuP2PCapsIndex_t. Cards without NVLink reach each other, but not atomically.
    calls["nvmlDeviceGetP2PStatus"] = {
        f"{place}/{index}": 0 if product.links or index < 2 else NO_P2P for place in range(count) for index in range(4)
    }
    assert memory > product.reserved_mib << 20
    return {"calls": calls, "fields": _fields(product)}


def _fields(product: Product) -> Json:
    """The field values that every GPU of the product answers alike."""
    links = range(product.links)
    fields: Json = {str(field): 0 for field in (3, 4, 5, 6, 94, 95, 142, 143, 144, 145)}
    fields |= {str(field): 0 for field in (75, 76, 77, 78, 79)}
    # Three thousandths of the time at the power limit: what a loaded GPU of each kind does now and then.
    fields |= {"74": running(41_000_000_000, 3_000_000), "80": 0, "81": 0}
    fields |= {"187": product.least_watts * 1000, "188": product.watts * 1000, "189": product.watts * 1000}
    fields |= {"190": product.watts * 1000, "192": product.watts * 1000}
    if product.driver >= 570:
        fields |= {"230": 0, "269": 0, "270": 0, "271": 0}
    if product.architecture >= 8:
        fields |= {
            "193": product.operating_c - product.shutdown_c, "194": product.operating_c - product.slowdown_c, "196": 0
        }  # fmt: skip
        fields |= {"195": 0} if product.memory_c else {}
        fields |= {"197": running(9_100_000_000_000, 3.1e9), "198": running(10_300_000_000_000, 3.4e9)}
    if not product.links:
        return fields
    each = product.link_kib_per_second
    fields |= {"91": product.links, "147": product.links, "90": product.link_mbps}
    for link in links:
        fields |= {
            f"138/{link}": running(4_000_000_000, each), f"139/{link}": running(4_000_000_000, each),
            f"140/{link}": running(4_640_000_000, each * 1.16), f"141/{link}": running(4_640_000_000, each * 1.16),
        }  # fmt: skip
    fields |= {
        f"{field}/{WHOLE}": running(start * product.links, each * product.links * factor)
        for field, start, factor in (
            (138, 4_000_000_000, 1.0), (139, 4_000_000_000, 1.0), (140, 4_640_000_000, 1.16), (141, 4_640_000_000, 1.16)
        )
    }  # fmt: skip
    if product.architecture >= 9:
        fields |= {f"164/{link}": product.link_mbps for link in links}
        fields |= {f"165/{link}": 1 for link in links}
        fields |= {f"166/{link}": product.link_version for link in links}
    if product.architecture < 10:
        fields |= {"38": 0, "45": 0, "52": 0, "59": 0}
    if product.architecture == 9:
        fields |= {f"{field}/{link}": 0 for field in (161, 162, 163) for link in links}
    if product.architecture >= 10:
        for link in links:
            fields |= {f"{field}/{link}": 0 for field in (*range(206, 216), 219)}
            fields |= {
                f"201/{link}": running(3e10, each * 4), f"202/{link}": running(4_096e9, each * 1024),
                f"203/{link}": running(3e10, each * 4), f"204/{link}": running(4_096e9, each * 1024),
                # 15e-255 is NVML's zero for a bit error rate: mantissa 15 in bits 8-11, exponent 255 in bits 0-7.
                f"220/{link}": 15 << 8 | 255, f"222/{link}": 15 << 8 | 255, f"221/{link}": 0,
            }  # fmt: skip
    return fields


def loaded(product: Product, who: Json, pid: int, busy: float = 1.0) -> Json:
    """What one GPU under load answers of its own; `busy` is the share of the load's full weight."""
    n = who["index"]
    warm = WARMER[n % 8]
    degrees = round(product.degrees * (0.6 + 0.4 * busy)) + warm
    watts = (product.watts * (product.load - 0.14) * busy + 0.14 * product.watts) + 4 * warm
    total = product.memory_mib << 20
    reserved = product.reserved_mib << 20
    used = round((total - reserved) * product.filled) >> 21 << 21
    process = used - (420 << 20)
    pace = product.pace
    calls: Json = {
        "nvmlDeviceGetIndex": n,
        "nvmlDeviceGetMinorNumber": who["minor"],
        "nvmlDeviceGetSerial": who["serial"],
        "nvmlDeviceGetVbiosVersion": who["vbios"],
        "nvmlDeviceGetBoardId": int(who["address"][5:7], 16) << 8,
        "nvmlDeviceGetTemperatureV": {"0": series(degrees, 2, n)},
        "nvmlDeviceGetTemperature": {"0": series(degrees, 2, n)},
        "nvmlDeviceGetPowerUsage": series(watts * 1000, product.watts * 25, n),
        "nvmlDeviceGetTotalEnergyConsumption": running(round(watts * 1000 * 84_000), round(watts * 1000)),
        "nvmlDeviceGetClockInfo": {
            "0": series(pace, 15, n), "1": series(pace, 15, n), "2": product.memory_mhz, "3": product.video_mhz - 90
        },
        "nvmlDeviceGetUtilizationRates": {"gpu": series(98, 2, n), "memory": series(54 * busy, 8 * busy, n)},
        "nvmlDeviceGetMemoryInfo": {"total": total, "free": total - reserved - used, "used": used + reserved},
        "nvmlDeviceGetMemoryInfo_v2": {
            "total": total, "reserved": reserved, "free": total - reserved - used, "used": used
        },
        "nvmlDeviceGetComputeRunningProcesses_v3": [
            {"pid": pid, "usedGpuMemory": process, "gpuInstanceId": WHOLE, "computeInstanceId": WHOLE}
        ],
    }  # fmt: skip
    if who["gsp"]:
        calls["nvmlDeviceGetGspFirmwareVersion"] = who["gsp"]
    if product.links:
        calls["nvmlDeviceGetModuleId"] = n + 1
    if product.architecture >= 9:
        calls["nvmlDeviceGetMarginTemperature"] = series(product.operating_c - degrees, -2, n)
    fields: Json = {
        "83": running(round(watts * 1000 * 84_000), round(watts * 1000)),
        "185": series(watts * 1000, product.watts * 25, n),
        "186": series(watts * 1000, product.watts * 40, n + 1),
    }
    if product.memory_c:
        fields["82"] = series(degrees + product.memory_warmer, 2, n + 2)
    made: Json = {"calls": calls, "fields": fields}
    if product.gpm:
        made["gpm"] = gpm(product, n, busy)
    return made


def gpm(product: Product, shift: int, busy: float) -> Json:
    """GPM's metrics of a GPU that trains a large model: percent, and MiB a second."""
    links = product.link_kib_per_second * product.links / 1024
    return {
        "1": series(97.2, 1.6, shift, 2), "2": series(86.4 * busy, 4.0 * busy, shift, 2),
        "3": series(27.5 * busy, 2.5 * busy, shift, 2), "4": series(9.3 * busy, 1.1 * busy, shift, 2),
        "5": series(48.7 * busy, 6.0 * busy, shift, 2), "6": 0.0, "7": series(48.7 * busy, 6.0 * busy, shift, 2),
        "8": 0.0, "9": 0.0, "10": series(44.1 * busy, 5.0 * busy, shift, 2), "11": 0.0,
        "12": series(11.9 * busy, 1.4 * busy, shift, 2), "13": series(4.2 * busy, 0.6 * busy, shift, 2),
        "20": series(2956 * busy, 300 * busy, shift, 1), "21": series(3242 * busy, 320 * busy, shift, 1),
        "60": series(links * busy, links / 20 * busy, shift, 1),
        "61": series(links * busy, links / 20 * busy, shift, 1),
    }  # fmt: skip


def recording(root: Path, product: Product, *, first_pid: int, busy: float = 1.0) -> Json:
    """The whole of one machine, all GPUs in one job."""
    version = driver(root)
    found = list(identities(root))
    devices = [
        {"uuid": who["uuid"], "pci": f"0000{who['address']}".upper(), **loaded(product, who, first_pid + n, busy)}
        for n, who in enumerate(found)
    ]
    for who, device in zip(found, devices, strict=True):
        device["calls"] |= place(root, found, who)
    everyone = shared(product, len(found))
    if busy < 1.0:
        for key, value in everyone["fields"].items():
            if isinstance(value, dict) and key.split("/")[0] in {"138", "139", "140", "141"}:
                value["per_second"] *= busy
    return {
        "origin": ORIGIN,
        "every": EVERY,
        "system": {
            "nvmlSystemGetDriverVersion": version,
            "nvmlSystemGetNVMLVersion": f"{product.cuda // 1000}.{version}",
            "nvmlSystemGetCudaDriverVersion_v2": product.cuda,
        },
        "all": everyone,
        "devices": devices,
        "events": [],
    }


def lose(made: Json, address: str) -> None:
    """Everything that is asked of the GPU at `address` answers that it is lost, its handle included."""
    asked = {*made["all"]["calls"], *products.HANDLES}
    for device in made["devices"]:
        asked.update(device["calls"])
    (gone,) = (device for device in made["devices"] if device["pci"].lower() == f"0000{address}")
    fields = {*made["all"]["fields"], *gone["fields"]}
    lost: Json = {"error": LOST}
    gone["calls"] = dict.fromkeys(sorted(asked), lost)
    gone["fields"] = dict.fromkeys(sorted(fields, key=_field_order), lost)
    gone.pop("gpm", None)


def _field_order(key: str) -> tuple[int, int]:
    field, _, scope = key.partition("/")
    return int(field), int(scope or -1)


def cut_link(made: Json, address: str, link: int) -> None:
    """One link of the GPU at `address` is down."""
    (device,) = (device for device in made["devices"] if device["pci"].lower() == f"0000{address}")
    device["calls"]["nvmlDeviceGetNvLinkState"] = {**made["all"]["calls"]["nvmlDeviceGetNvLinkState"], str(link): 0}
    device["fields"][f"165/{link}"] = 0
    for field in (138, 139, 140, 141):
        device["fields"][f"{field}/{link}"] = made["all"]["fields"][f"{field}/{link}"]["from"]


def cut_into_instances(made: Json, root: Path, product: Product) -> None:
    """GPU 0 in the MIG instances whose capabilities the machine has; its links are absent, its process runs in the
    first instance."""
    device = made["devices"][0]
    (process,) = device["calls"]["nvmlDeviceGetComputeRunningProcesses_v3"]
    absent: Json = {"error": NOT_SUPPORTED}
    device["calls"] |= {
        "nvmlDeviceGetMigMode": {"currentMode": 1, "pendingMode": 1},
        **dict.fromkeys(
            (
                "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization",
                *(call for call in made["all"]["calls"] if "NvLink" in call),
            ),
            absent,
        ),
    }  # fmt: skip
    linked = {"38", "45", "52", "59", "90", "91", "138", "139", "140", "141", "147", *(str(n) for n in range(161, 168))}
    device["fields"] |= {key: absent for key in made["all"]["fields"] if key.split("/")[0] in linked}
    # No other GPU reaches the memory of one that is cut up.
    device["calls"]["nvmlDeviceGetP2PStatus"] = {
        f"{place}/{index}": NO_P2P for place in range(len(made["devices"])) for index in range(4)
    }
    device.pop("gpm")
    device["mig"] = []
    instances = sorted(
        int(folder.name[2:]) for folder in (root / "proc/driver/nvidia/capabilities/gpu0/mig").glob("gi*")
    )
    for n, gi in enumerate(instances):
        profile, slices, mib, processors = products.H100_INSTANCES[2 if gi in (1, 2) else 1]
        busy = gi == 1
        used = (13_312 if busy else 16) << 20
        running_here = {
            **process, "usedGpuMemory": used - (16 << 20), "gpuInstanceId": gi, "computeInstanceId": 0
        }  # fmt: skip
        holder = [running_here] if busy else []
        device["mig"].append({
            "gi": gi, "ci": [0], "profile": profile,
            "uuid": f"MIG-{uuid.uuid5(uuid.UUID(device['uuid'][4:]), str(gi))}",
            "calls": {
                "nvmlDeviceGetName": f"{product.name} MIG {profile}",
                "nvmlDeviceGetMemoryInfo_v2": {
                    "total": mib << 20, "reserved": 0, "free": (mib << 20) - used, "used": used
                },
                "nvmlDeviceGetMemoryInfo": {"total": mib << 20, "free": (mib << 20) - used, "used": used},
                "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": 16 << 30, "bar1Free": (16 << 30) - 1, "bar1Used": 1},
                "nvmlDeviceGetComputeRunningProcesses_v3": holder,
                "nvmlDeviceGetAttributes_v2": {
                    "multiprocessorCount": processors, "sharedCopyEngineCount": slices, "sharedDecoderCount": slices,
                    "sharedEncoderCount": 0, "sharedJpegCount": slices, "sharedOfaCount": 0,
                    "gpuInstanceSliceCount": slices, "computeInstanceSliceCount": slices, "memorySizeMB": mib,
                },
            },
            "gpm": {
                key: series(value if busy else 0.0, value / 10 if busy else 0.0, n, 2)
                for key, value in (("1", 71.0), ("2", 52.0), ("3", 18.0), ("5", 21.0), ("10", 26.0))
            },
        })  # fmt: skip
    total, reserved = product.memory_mib << 20, product.reserved_mib << 20
    used = sum(one["calls"]["nvmlDeviceGetMemoryInfo_v2"]["used"] for one in device["mig"])
    free = total - reserved - used
    device["calls"] |= {
        "nvmlDeviceGetMemoryInfo": {"total": total, "free": free, "used": used + reserved},
        "nvmlDeviceGetMemoryInfo_v2": {"total": total, "reserved": reserved, "free": free, "used": used},
        # The GPU's own handle tells the processes of all its instances.
        "nvmlDeviceGetComputeRunningProcesses_v3": [
            one for part in device["mig"] for one in part["calls"]["nvmlDeviceGetComputeRunningProcesses_v3"]
        ],
    }


def a100x8(root: Path) -> Json:
    return recording(root, products.A100, first_pid=30544)


def h100x8(root: Path) -> Json:
    return recording(root, products.H100, first_pid=49306)


def b200x8(root: Path) -> Json:
    return recording(root, products.B200, first_pid=61200)


def l40sx4(root: Path) -> Json:
    return recording(root, products.L40S, first_pid=22810)


def h100x8_mig(root: Path) -> Json:
    made = recording(root, products.H100, first_pid=68800)
    cut_into_instances(made, root, products.H100)
    return made


def h100x8_lost(root: Path) -> Json:
    # The peers wait for the one that is gone: their kernels spin, so they look used and do next to nothing.
    made = recording(root, products.H100, first_pid=41873, busy=0.05)
    for address in ("0000:c3:00.0", "0000:df:00.0"):  # the kernel log: Xid 74, fatal error on link 6
        cut_link(made, address, 6)
    lose(made, "0000:9d:00.0")
    return made


MAKERS: dict[str, Callable[[Path], Json]] = {
    "a100x8": a100x8, "h100x8": h100x8, "b200x8": b200x8, "l40sx4": l40sx4, "h100x8-mig": h100x8_mig,
    "h100x8-lost": h100x8_lost,
}  # fmt: skip


def written(made: Json) -> str:
    """The recording as text: one line a call, field set or device, so that a change of one shows as one."""
    lines = ["{"]
    for key in ("origin", "every", "system"):
        lines.append(f'"{key}":{_short(made[key])},')
    lines.append('"all":{')
    lines.extend(_part(made["all"]))
    lines.append('},"devices":[')
    for n, device in enumerate(made["devices"]):
        lines.append(f'{{"uuid":"{device["uuid"]}","pci":"{device["pci"]}",')
        lines.extend(_part({key: value for key, value in device.items() if key not in {"uuid", "pci"}}))
        lines.append("}" if n + 1 == len(made["devices"]) else "},")
    lines.append(f'],"events":{_short(made["events"])}}}')
    return "\n".join(lines) + "\n"


def _part(part: Json) -> list[str]:
    lines = []
    for n, (key, value) in enumerate(part.items()):
        end = "" if n + 1 == len(part) else ","
        if key == "calls":
            inner = ",\n".join(f'"{call}":{_short(answer)}' for call, answer in value.items())
            lines.append(f'"calls":{{\n{inner}}}{end}')
        elif isinstance(value, list):
            inner = ",\n".join(_short(one) for one in value)
            lines.append(f'"{key}":[\n{inner}]{end}')
        else:
            lines.append(f'"{key}":{_short(value)}{end}')
    return lines


def _short(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def holders(made: Json) -> list[int]:
    """The processes on the GPUs."""
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    lists = (device["calls"][call] for device in made["devices"])
    return [process["pid"] for one in lists if isinstance(one, list) for process in one]


def write(name: str, root: Path) -> None:
    """The machine under `root` has its nvml.json and the files of the host's sources."""
    made = MAKERS[name](root)
    (root / "nvml.json").write_text(written(made))
    write_host(root, HOSTS[name], holders(made), driver(root))
    write_wiring(root, name)


def main(names: list[str]) -> None:
    for name in names or NAMES:
        write(name, NODES / name)


if __name__ == "__main__":
    main(sys.argv[1:])
