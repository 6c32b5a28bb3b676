"""What a GPU of each product answers that depends on the product alone.

Source  NVIDIA's data sheets of A100 80GB SXM, H100 80GB SXM, B200 (HGX) and L40S for memory, power, links and PCIe;
        public outputs of nvidia-smi -q for clocks, thresholds, InfoROM versions and the banks of the row remapper.
        B200's thresholds, banks and reserve are our estimates: no public output told them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    name: str
    architecture: int  # NVML_DEVICE_ARCH_*
    compute: tuple[int, int]
    device: int  # PCI
    subsystem: int
    driver: int
    cuda: int
    watts: int
    least_watts: int
    sm_mhz: int
    memory_mhz: int
    video_mhz: int
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    shutdown_c: int
    slowdown_c: int
    operating_c: int
    memory_c: int  # 0 where the memory has no sensor
    memory_warmer: int  # degrees above the core
    banks: int  # of the row remapper
    inforom: str
    inforom_ecc: str
    pcie: int
    events: int  # NVML's mask of events it can tell
    mig: bool = False
    gpm: bool = False
    fabric: bool = False
    fabric_mask: int = 0
    links: int = 0
    link_version: int = 0  # nvmlNvlinkVersion_t
    link_mbps: int = 0
    link_kib_per_second: int = 0  # what the load moves over one link, each way
    switches: tuple[str, ...] = ()
    # The load: degrees of the coolest GPU, the share of the power limit, the clock it settles at, the memory it fills.
    degrees: int
    load: float
    pace: int
    filled: float


A100 = Product(
    name="NVIDIA A100-SXM4-80GB", architecture=7, compute=(8, 0), device=0x20B2, subsystem=0x147F, driver=535,
    cuda=12020, watts=400, least_watts=100, sm_mhz=1410, memory_mhz=1593, video_mhz=1290, memory_mib=81920,
    reserved_mib=640, bar1_mib=131072, shutdown_c=92, slowdown_c=89, operating_c=85, memory_c=95, memory_warmer=5,
    banks=640, inforom="G506.0210.00.04", inforom_ecc="6.16", pcie=4, events=0x19F, mig=True, links=12,
    link_version=4, link_mbps=25000, link_kib_per_second=6 << 20,
    switches=tuple(f"0000:c{n}:00.0" for n in range(4, 10)), degrees=55, load=0.86, pace=1395, filled=0.87,
)  # fmt: skip

H100 = Product(
    name="NVIDIA H100 80GB HBM3", architecture=9, compute=(9, 0), device=0x2330, subsystem=0x16C1, driver=570,
    cuda=12080, watts=700, least_watts=200, sm_mhz=1980, memory_mhz=2619, video_mhz=1545, memory_mib=81559,
    reserved_mib=551, bar1_mib=131072, shutdown_c=95, slowdown_c=89, operating_c=87, memory_c=95, memory_warmer=8,
    banks=2560, inforom="G520.0200.00.05", inforom_ecc="7.16", pcie=5, events=0xF19F, mig=True, gpm=True,
    # two bits each: no degraded bandwidth, no route recovery, no unhealthy route, no access timeout recovery (2: false)
    fabric=True, fabric_mask=0b10101010 | 1 << 8, links=18, link_version=6, link_mbps=26562,
    link_kib_per_second=10 << 20, switches=tuple(f"0000:0{n}:00.0" for n in range(5, 9)), degrees=58, load=0.91,
    pace=1965, filled=0.89,
)  # fmt: skip

B200 = Product(
    name="NVIDIA B200", architecture=10, compute=(10, 0), device=0x2901, subsystem=0x1999, driver=580, cuda=13000,
    watts=1000, least_watts=200, sm_mhz=1965, memory_mhz=3996, video_mhz=1965, memory_mib=183359, reserved_mib=1100,
    bar1_mib=262144, shutdown_c=97, slowdown_c=92, operating_c=90, memory_c=100, memory_warmer=6, banks=5120,
    inforom="G548.0201.00.06", inforom_ecc="7.16", pcie=5, events=0xF19F, mig=True, gpm=True, fabric=True,
    fabric_mask=0b10101010 | 1 << 8, links=18, link_version=7, link_mbps=53125, link_kib_per_second=20 << 20,
    degrees=56, load=0.9, pace=1920, filled=0.88,
)  # fmt: skip

L40S = Product(
    name="NVIDIA L40S", architecture=8, compute=(8, 9), device=0x26B9, subsystem=0x1851, driver=550, cuda=12040,
    watts=350, least_watts=100, sm_mhz=2520, memory_mhz=9001, video_mhz=1965, memory_mib=46068, reserved_mib=622,
    bar1_mib=65536, shutdown_c=99, slowdown_c=96, operating_c=92, memory_c=0, memory_warmer=0, banks=192,
    inforom="G133.0242.00.03", inforom_ecc="6.16", pcie=4, events=0x19F, degrees=61, load=0.8, pace=2445, filled=0.72,
)  # fmt: skip

# By compute slices: profile, slices, MiB, streaming multiprocessors.
H100_INSTANCES = {1: ("1g.10gb", 1, 9984, 16), 2: ("2g.20gb", 2, 20096, 32)}

SRAM_STATUS = (
    "aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed",
    "volatileCor", "aggregateUncBucketL2", "aggregateUncBucketSm", "aggregateUncBucketPcie",
    "aggregateUncBucketMcu", "aggregateUncBucketOther", "bThresholdExceeded",
)  # fmt: skip

# What a new client of NVML asks of a GPU before anything else; of a lost one these fail, too.
HANDLES = (
    "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetUUID", "nvmlGpmQueryDeviceSupport", "nvmlDeviceRegisterEvents",
)  # fmt: skip
