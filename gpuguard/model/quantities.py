"""What can be measured of a GPU, its MIG instances and the processes on it, whoever reads it.

More than one source reads these (NVML, DCGM, a recorded machine), and detectors, metrics and commands name them; what
only one source of the host reads is declared beside its code. Bounds are wide: they tell a broken reading from a bad
one. Units are base units; MHz, mW, KiB and percent end where they are read.

Source  nvml.h 13.5 for meanings and units; the bounds from the range checks of DCGM and gpuguard's own margins
"""

from gpuguard.model.readings import Quantity

# DCGM and NVML leave placeholders near 2**63 and 2**47; no counter of a GPU gets there in a life.
COUNTER_TOP = float(2**47 - 1)
# Bytes may: 18 links at 100 GB/s pass 2**47 within two minutes. DCGM's blanks begin at 0x7ffffffffffffff0.
BYTES_TOP = float(0x7FFFFFFFFFFFFF00)
# Bounds of the histogram `nvml_call_seconds`: a scalar takes 2 to 50 us, a batch of fields a millisecond, and what
# takes seconds hangs.
NVML_CALL_BOUNDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)


def _ratio(name: str, help: str, *, keep: bool = False) -> Quantity:
    return Quantity(name=name, of="gpu", unit="ratio", help=help, low=0.0, high=1.05, keep=keep)


def _flag(name: str, help: str, *, metric: str | None = "") -> Quantity:
    return Quantity(name=name, of="gpu", unit="flag", help=help, low=0, high=1, metric=metric)


def _code(name: str, help: str, *, metric: str | None = None, high: float = 1e6) -> Quantity:
    return Quantity(name=name, of="gpu", unit="code", help=help, low=0, high=high, metric=metric)


def _text(name: str, help: str) -> Quantity:
    return Quantity(name=name, of="gpu", unit="text", help=help, kind="text", metric=None)


def _count(name: str, help: str, *, metric: str | None = "", labels: dict[str, str] | None = None) -> Quantity:
    return Quantity(
        name=name, of="gpu", unit="count", help=help, kind="counter", low=0, high=COUNTER_TOP, metric=metric,
        labels=labels or {},
    )  # fmt: skip


def _limiter(reason: str) -> Quantity:
    return Quantity(
        name=f"{reason}_seconds_total", of="gpu", unit="seconds", kind="counter", low=0.0, high=COUNTER_TOP,
        metric="clock_event_seconds_total", labels={"reason": reason},
        help="Time in which clocks were held down, by reason.",
    )  # fmt: skip


def _ecc(kind: str, scope: str) -> Quantity:
    return _count(
        f"ecc_{kind}_{scope}", "Memory errors since the driver was loaded (volatile) or for life (aggregate).",
        metric="ecc_errors_total", labels={"type": kind, "scope": scope},
    )  # fmt: skip


IDENTITY = (
    _text("gpu_uuid", "UUID of the GPU."),
    _text("gpu_serial", "Serial number of the board."),
    Quantity(name="gpu_index", of="gpu", unit="count", help="NVML's index of the GPU.", low=0, high=255, metric=None),
    _text("gpu_name", "Product name."),
    Quantity(name="gpu_minor", of="gpu", unit="count", help="Number N of /dev/nvidiaN.", low=0, high=255, metric=None),
    _text("gpu_vbios", "Version of the VBIOS."),
    _text("gpu_inforom", "Version of the InfoROM's image."),
    _text("gpu_pci_id", "Vendor and device, as 10de:2330."),
    _code("gpu_architecture", "NVML's number of the architecture: 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell."),
)

LIFE = (
    _flag("gpu_up", "1 while the GPU answers the driver's library."),
    _code("nvml_error", "NVML's code for the GPU as a whole: 15 lost, 16 reset required; 0 none.", high=999),
    _code(
        "recovery_action",
        "The driver's advice: 0 none, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX, 6 bus reset, "
        "7 system reboot.",
        metric="", high=15,
    ),
    _code("performance_state", "P-state, 0 the fastest.", high=15),
)  # fmt: skip

CLOCKS = tuple(
    Quantity(
        name=name, of="gpu", unit="hertz", help=help, low=0.0, high=1e11, keep=keep, metric="" if exported else None
    )
    for name, help, keep, exported in (
        ("sm_clock_hertz", "Clock of the SMs now.", True, True),
        ("memory_clock_hertz", "Clock of the memory now.", False, True),
        ("sm_clock_limit_hertz", "The highest clock of the SMs that the board allows.", False, True),
        ("memory_clock_limit_hertz", "The highest clock of the memory that the board allows.", False, False),
        ("sm_application_clock_hertz", "The clock of the SMs that was set for applications.", False, True),
    )
)

THERMAL = tuple(
    Quantity(
        name=name, of="gpu", unit="celsius", help=help, low=low, high=150.0, keep=keep, metric="" if exported else None
    )
    for name, help, low, keep, exported in (
        ("temperature_celsius", "Temperature of the GPU's core.", -20.0, True, True),
        ("memory_temperature_celsius", "Temperature of the memory.", -20.0, True, True),
        ("temperature_margin_celsius", "Degrees to the limit at which clocks are held down.", 0.0, False, True),
        ("slowdown_temperature_celsius", "At this temperature clocks are held down.", 1.0, False, False),
        ("shutdown_temperature_celsius", "At this temperature the GPU shuts down.", 1.0, False, False),
        ("operating_temperature_limit_celsius", "The highest temperature of normal operation.", 1.0, False, False),
        ("memory_temperature_limit_celsius", "The highest temperature of the memory.", 1.0, False, False),
    )
)

POWER = (
    Quantity(name="power_watts", of="gpu", unit="watts", help="Power of the board.", low=0.0, high=3000.0, keep=True),
    Quantity(
        name="power_limit_watts", of="gpu", unit="watts", help="Power limit in force.", low=1.0, high=3000.0
    ),
    Quantity(
        name="power_default_limit_watts", of="gpu", unit="watts", help="Power limit of the product.",
        low=1.0, high=3000.0,
    ),
    Quantity(
        name="power_highest_limit_watts", of="gpu", unit="watts", help="The highest power limit that may be set.",
        low=1.0, high=3000.0, metric=None,
    ),
    Quantity(
        name="energy_joules_total", of="gpu", unit="joules", kind="counter", help="Energy since the driver was loaded.",
        low=0.0, high=COUNTER_TOP,
    ),
    Quantity(
        name="clock_events", of="gpu", unit="mask", help="NVML's bits of what holds clocks down now.",
        low=0, high=float(2**32), metric=None,
    ),
    _limiter("power_violation"),
    _limiter("thermal_violation"),
    _limiter("sync_boost_violation"),
    _limiter("board_limit_violation"),
    _limiter("low_utilization_violation"),
    _limiter("reliability_violation"),
    _limiter("sw_thermal_slowdown"),
    _limiter("hw_thermal_slowdown"),
    _limiter("hw_power_brake"),
)  # fmt: skip

ACTIVITY = (
    _ratio(
        "utilization_ratio", "Share of time in which a kernel ran; says nothing of how full the GPU was.", keep=True
    ),
    _ratio("memory_copy_ratio", "Share of time in which memory was read or written."),
    _ratio("encoder_ratio", "Share of time in which the video encoder worked."),
    _ratio("decoder_ratio", "Share of time in which the video decoder worked."),
    _ratio("graphics_active_ratio", "Share of cycles in which the graphics or compute engine was busy."),
    _ratio("sm_active_ratio", "Share of cycles in which an SM had a warp, over all SMs.", keep=True),
    _ratio("sm_occupancy_ratio", "Resident warps over those an SM can hold.", keep=True),
    _ratio("tensor_active_ratio", "Share of cycles in which a tensor pipe worked.", keep=True),
    _ratio("dram_active_ratio", "Share of cycles in which the memory interface moved data.", keep=True),
    _ratio("fp64_active_ratio", "Share of cycles in which the FP64 pipe worked."),
    _ratio("fp32_active_ratio", "Share of cycles in which the FP32 pipe worked."),
    _ratio("fp16_active_ratio", "Share of cycles in which the FP16 pipe worked."),
)

MEMORY = tuple(
    Quantity(name=name, of="gpu", unit="bytes", help=help, low=0, high=float(2**44), keep=keep)
    for name, help, keep in (
        ("memory_total_bytes", "Memory of the GPU.", False),
        ("memory_used_bytes", "Memory in use, without what the driver reserves.", True),
        ("memory_free_bytes", "Free memory.", False),
        ("memory_reserved_bytes", "Memory that the driver reserves.", False),
        ("bar1_used_bytes", "Memory that is mapped through BAR1.", False),
    )
)

PCIE = (
    *(
        Quantity(
            name=f"pcie_{way}_bytes_per_second", of="gpu", unit="bytes_per_second", low=0.0, high=128e9, keep=True,
            help=f"PCIe traffic {words} the GPU.",
        )
        for way, words in (("tx", "from"), ("rx", "to"))
    ),
    Quantity(name="pcie_link_generation", of="gpu", unit="count", help="PCIe generation now.", low=1, high=8),
    Quantity(name="pcie_link_width", of="gpu", unit="lanes", help="PCIe lanes in use now.", low=1, high=32),
    Quantity(
        name="pcie_link_generation_limit", of="gpu", unit="count", low=1, high=8, metric=None,
        help="The highest generation that GPU and slot can do together.",
    ),
    Quantity(
        name="pcie_link_width_limit", of="gpu", unit="lanes", low=1, high=32, metric=None,
        help="The most lanes that GPU and slot can do together.",
    ),
    _code("gpu_numa_node", "The NUMA node that the GPU hangs on.", high=4095),
    _count("pcie_replay_total", "Packets that PCIe had to send again."),
)  # fmt: skip

NVLINK = (
    *(
        Quantity(
            name=f"nvlink_{way}_bytes_per_second", of="gpu", unit="bytes_per_second", low=0.0, high=2e12, keep=True,
            help=f"NVLink traffic {words} the GPU over all links.", metric=None,
        )
        for way, words in (("tx", "from"), ("rx", "to"))
    ),
    *(
        Quantity(
            name=f"nvlink_{way}_bytes_all_total", of="gpu", unit="bytes", kind="counter", low=0, high=BYTES_TOP,
            help=f"NVLink data {words} the GPU over all links.", metric=None,
        )
        for way, words in (("tx", "from"), ("rx", "to"))
    ),
    *(
        Quantity(
            name=f"nvlink_{way}_bytes_total", of="gpu", unit="bytes", kind="counter", low=0, high=BYTES_TOP,
            each="link", help=f"NVLink data {words} the GPU, by link.",
        )
        for way, words in (("tx", "from"), ("rx", "to"))
    ),
    Quantity(
        name="nvlink_up", of="gpu", unit="flag", each="link", low=0, high=1, beside={"peer": "nvlink_peers"},
        help="1 while the link is up, by its number and what it leads to.",
    ),
    Quantity(name="nvlinks_active", of="gpu", unit="count", low=0, high=72, help="NVLinks that are up."),
    Quantity(name="nvlink_version", of="gpu", unit="code", low=0, high=64, metric=None, help="NVLink's version."),
    _count("nvlink_crc_errors_total", "CRC errors over all links."),
    _count("nvlink_replay_errors_total", "Packets that NVLink had to send again, over all links."),
    _count("nvlink_recovery_errors_total", "Recoveries over all links."),
    *(
        _count(f"nvlink5_{kind}_total", "Errors over all links of NVLink 5, by kind.",
               metric="nvlink5_errors_total", labels={"kind": kind})
        for kind in (
            "malformed", "buffer_overrun", "receive", "receive_remote", "receive_general", "local_integrity",
            "transmit_discards", "recovery_successful", "recovery_failed", "recovery_events", "effective", "symbol",
        )
    ),
    Quantity(
        name="nvlink_effective_ber", of="gpu", unit="ratio", low=0.0, high=1.0, metric=None,
        help="Bit errors that correction left, of the worst link.",
    ),
    Quantity(
        name="nvlink_symbol_ber", of="gpu", unit="ratio", low=0.0, high=1.0, metric=None,
        help="Symbol errors of the worst link.",
    ),
    _code("fabric_state", "Registration with the fabric: 1 not started, 2 under way, 3 completed.", metric="", high=3),
    _code("fabric_status", "NVML's code for how the registration ended; 0 well.", high=999),
    _code("fabric_health", "Health of the fabric: 1 healthy, 2 unhealthy, 3 limited.", high=3),
    Quantity(
        name="fabric_health_mask", of="gpu", unit="mask", low=0, high=float(2**32), metric=None,
        help="NVML's mask of what ails the fabric.",
    ),
)  # fmt: skip


def _told(name: str, help: str, high: float) -> Quantity:
    """What the driver says of a GPU and each of its peers, by their addresses."""
    return Quantity(
        name=name, of="gpu", unit="code", help=help, each="peer", keyed=True, low=0, high=high, metric=None
    )  # fmt: skip


# What does not change while a machine is up: from these the graph of `topology/` is built.
WIRING = (
    Quantity(
        name="nvlink_peers", of="gpu", unit="text", kind="text", each="link", metric=None,
        help="What each NVLink ends at: gpu:<pci>, nvswitch:<pci>, nvswitch where it shows no address, npu:<pci>.",
    ),
    Quantity(
        name="nvlinks_to_switches", of="gpu", unit="count", low=0, high=72, metric=None,
        help="NVLinks that end at NVSwitches.",
    ),
    Quantity(
        name="nvlink_speed_bytes_per_second", of="gpu", unit="bytes_per_second", low=1.0, high=1e12, metric=None,
        help="What one NVLink can carry each way.",
    ),
    _told(
        "common_ancestors", "What two GPUs have in common on the PCIe tree: 0 a board, 10 a switch, 20 switches, "
        "30 a host bridge, 40 a NUMA node, 50 the machine.", 50,
    ),
    *(
        _told(f"p2p_{what}", f"NVML's code for whether two GPUs can reach each other {words}; 0 well.", 6)
        for what, words in (
            ("read", "to read"), ("write", "to write"), ("nvlink", "over NVLink"), ("atomics", "with atomics")
        )
    ),
    _text("nvml_cpus", "Processors near the GPU by the driver's word, of those that its reader may use, as 0-55."),
    _text("nvml_numa_nodes", "NUMA nodes near the GPU by the driver's word."),
    Quantity(
        name="gpu_memory_numa_node", of="gpu", unit="count", low=0, high=1023, metric=None,
        help="NUMA node of the GPU's own memory, on coherent parts.",
    ),
    Quantity(
        name="fabric_clique", of="gpu", unit="count", low=0, high=float(2**32), metric=None,
        help="Part of its fabric in which GPUs reach each other over NVLink.",
    ),
    _text("fabric_cluster", "UUID of the fabric beyond the node."),
    Quantity(
        name="gpu_module_id", of="gpu", unit="count", low=0, high=255, metric=None,
        help="Number of the module on its baseboard; 0 for a card.",
    ),
    _text("gpu_compute_capability", "CUDA's compute capability, as 9.0."),
)  # fmt: skip

RELIABILITY = (
    _flag("ecc_mode", "1 while ECC is on.", metric=None),
    _flag("ecc_mode_pending", "1 where ECC is to be on after a reset.", metric=None),
    _ecc("corrected", "volatile"),
    _ecc("uncorrected", "volatile"),
    _ecc("corrected", "aggregate"),
    _ecc("uncorrected", "aggregate"),
    _count("ecc_dram_corrected", "Corrected errors of the DRAM since the driver was loaded.", metric=None),
    _count("ecc_dram_uncorrected", "Uncorrected errors of the DRAM since the driver was loaded.", metric=None),
    _count("ecc_sram_corrected", "Corrected errors of the SRAM since the driver was loaded.", metric=None),
    _count("ecc_sram_uncorrected", "Uncorrected errors of the SRAM since the driver was loaded.", metric=None),
    _count("ecc_sram_uncorrected_aggregate", "Uncorrected errors of the SRAM for life.", metric=None),
    _flag("sram_threshold_exceeded", "1 where uncorrected SRAM errors passed the vendor's limit."),
    Quantity(
        name="remapped_rows_correctable", of="gpu", unit="count", low=0, high=1e6, metric="remapped_rows",
        labels={"kind": "correctable"}, help="Rows of memory that were replaced, by the kind of error.",
    ),
    Quantity(
        name="remapped_rows_uncorrectable", of="gpu", unit="count", low=0, high=1e6, metric="remapped_rows",
        labels={"kind": "uncorrectable"}, help="Rows of memory that were replaced, by the kind of error.",
    ),
    _flag("row_remap_pending", "1 where a reset will replace a row."),
    _flag("row_remap_failure", "1 where a row could not be replaced."),
    *(
        Quantity(
            name=f"remap_banks_{left}", of="gpu", unit="count", low=0, high=1e6, metric=None,
            help=f"Banks of memory with {left} of their spare rows left.",
        )
        for left in ("all", "most", "some", "few", "none")
    ),
    Quantity(
        name="retired_pages_single_bit", of="gpu", unit="count", low=0, high=1e6, metric=None,
        help="Pages retired for corrected errors.",
    ),
    Quantity(
        name="retired_pages_double_bit", of="gpu", unit="count", low=0, high=1e6, metric=None,
        help="Pages retired for uncorrected errors.",
    ),
    _flag("retired_pages_pending", "1 where a reset will retire a page.", metric=None),
    _flag("memory_unrepairable", "1 where the memory cannot be repaired any more."),
    _flag("inforom_valid", "1 while the InfoROM's checksum is right."),
)  # fmt: skip

MODES = (
    _flag("persistence_mode", "1 while the driver stays loaded without a user.", metric=None),
    _flag("mig_mode", "1 while the GPU can be cut into instances."),
    _flag("mig_mode_pending", "1 where it is to be so after a reset.", metric=None),
    _code("compute_mode", "Who may use the GPU: 0 all, 2 nobody, 3 one process.", high=3),
    Quantity(name="process_count", of="gpu", unit="count", low=0, high=1e6, help="Processes on the GPU."),
)

MIG = (
    Quantity(name="mig_gpu_instance", of="mig", unit="count", low=0, high=255, metric=None, help="GPU instance."),
    Quantity(name="mig_profile", of="mig", unit="text", kind="text", metric=None, help="Profile, as 1g.10gb."),
    Quantity(name="mig_uuid", of="mig", unit="text", kind="text", metric=None, help="UUID of the instance."),
    Quantity(
        name="mig_compute_instances", of="mig", unit="text", kind="text", metric=None,
        help="Numbers of its compute instances, with commas.",
    ),
    Quantity(
        name="mig_memory_total_bytes", of="mig", unit="bytes", low=0, high=float(2**44), help="Memory of the instance."
    ),
    Quantity(
        name="mig_memory_used_bytes", of="mig", unit="bytes", low=0, high=float(2**44),
        help="Memory in use in the instance.",
    ),
    *(
        Quantity(name=f"mig_{name}", of="mig", unit="ratio", low=0.0, high=1.05, help=help)
        for name, help in (
            ("graphics_active_ratio", "Share of cycles in which the instance was busy."),
            ("sm_active_ratio", "Share of cycles in which an SM of the instance had a warp."),
            ("sm_occupancy_ratio", "Resident warps over those an SM can hold, in the instance."),
            ("tensor_active_ratio", "Share of cycles in which a tensor pipe of the instance worked."),
            ("dram_active_ratio", "Share of cycles in which the instance's memory moved data."),
        )
    ),
)  # fmt: skip

# A row is named process:<address of the GPU>/<pid>.
PROCESSES = (
    Quantity(name="process_name", of="process", unit="text", kind="text", metric=None, help="Its name."),
    Quantity(name="process_kind", of="process", unit="text", kind="text", metric=None, help="compute, graphics, mps."),
    Quantity(name="process_user", of="process", unit="text", kind="text", metric=None, help="Whose it is."),
    Quantity(
        name="process_memory_bytes", of="process", unit="bytes", low=0, high=float(2**44), metric=None,
        help="Memory of the GPU that it holds.",
    ),
    Quantity(
        name="process_mig", of="process", unit="count", low=0, high=255, metric=None, help="GPU instance it runs in."
    ),
)  # fmt: skip

# Of the node, about the driver and its library.
DRIVER = (
    Quantity(name="driver_version", of="node", unit="text", kind="text", metric=None, help="The kernel driver's."),
    Quantity(name="nvml_version", of="node", unit="text", kind="text", metric=None, help="The library's."),
    Quantity(name="cuda_version", of="node", unit="text", kind="text", metric=None, help="CUDA's, as 12.8."),
    Quantity(name="gpus_visible", of="node", unit="count", low=0, high=1024, help="GPUs that NVML lists and reads."),
    Quantity(name="gpus_lost", of="node", unit="count", low=0, high=1024, help="GPUs that were there and are not."),
    Quantity(
        name="nvml_hung", of="node", unit="flag", low=0, high=1, help="1 while a call of the driver's library hangs."
    ),
    Quantity(
        name="nvml_hung_for_seconds", of="node", unit="seconds", low=0.0, metric=None, help="How long it hangs by now."
    ),
    Quantity(
        name="nvml_hung_call", of="node", unit="text", kind="text", metric=None, help="What was asked when it hung."
    ),
    Quantity(
        name="nvml_children_abandoned_total", of="node", unit="count", kind="counter", low=0,
        help="Processes that were left behind in a call of the driver's library.",
    ),
    Quantity(
        name="nvml_failing", of="node", unit="flag", low=0, high=1,
        help="1 while whoever asks the driver's library ends or is refused, and looked at nothing to the end since.",
    ),
    Quantity(
        name="nvml_failure", of="node", unit="text", kind="text", metric=None, help="How that failed the last time.",
    ),
    Quantity(
        name="nvml_init_error", of="node", unit="code", low=0, high=999, metric=None,
        help="NVML's code for why it could not begin: 9 no driver, 18 library and driver differ; 0 none.",
    ),
    *(
        Quantity(
            name=f"nvml_{rate}_sweep_seconds", of="node", unit="seconds", low=0.0, metric="collect_duration_seconds",
            labels={"class": rate}, help="How long the newest sweep of the GPUs took, by class.",
        )
        for rate in ("fast", "medium", "slow")
    ),
    Quantity(
        name="nvml_call_seconds", of="node", unit="seconds", low=0.0, each="le", metric=None,
        help="How long calls of the driver's library took: for each group its name, counts up to each bound, of all, "
        "and the sum.",
    ),
    Quantity(
        name="samples_due_total", of="node", unit="count", kind="counter", low=0,
        help="Sweeps of the GPUs that were due.",
    ),
    Quantity(
        name="samples_taken_total", of="node", unit="count", kind="counter", low=0,
        help="Sweeps of the GPUs that were taken in time.",
    ),
    Quantity(
        name="rejected_samples_total", of="node", unit="count", kind="counter", low=0, each="metric", keyed=True,
        help="Values that could not be, and were not believed.",
    ),
    Quantity(
        name="collect_errors_total", of="node", unit="count", kind="counter", low=0, each="code", keyed=True,
        help="Answers of the driver's library that were errors, other than that something is not supported.",
    ),
)  # fmt: skip

GPU_QUANTITIES: tuple[Quantity, ...] = (
    *IDENTITY, *LIFE, *CLOCKS, *THERMAL, *POWER, *ACTIVITY, *MEMORY, *PCIE, *NVLINK, *WIRING, *RELIABILITY, *MODES,
    *MIG, *PROCESSES, *DRIVER,
)  # fmt: skip
BY_NAME: dict[str, Quantity] = {quantity.name: quantity for quantity in GPU_QUANTITIES}
