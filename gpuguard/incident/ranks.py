"""Which of several faults at one time is the cause, and which are its consequences.

Source  the order in which the driver reports one fault (a lost GPU also prints 45, 74 on its peers, 154), as seen in
        field logs; the strongest member names the incident
"""

from gpuguard.model.findings import SEVERITIES, Finding, Severity

# Strongest first. Codes on one line are equals.
ORDER: tuple[tuple[str, ...], ...] = (
    ("xid79", "gpu_lost", "gpu_silent", "nvml_lost", "nvml_unlisted"),
    ("xid95",),
    ("xid64", "row_remap_failed", "memory_unrepairable"),
    ("xid48", "xid140", "ecc_uncorrected"),
    ("xid119", "xid120", "gsp"),
    ("xid62", "xid143", "rm_init_failed"),
    ("xid74", "xid149", "xid144", "xid145", "xid146", "xid147", "xid148", "xid150", "nvlink"),
    ("xid94",),
    ("xid63",),
    ("xid109",),
    ("xid45", "xid43", "xid13", "xid31"),
)
RANK: dict[str, int] = {code: len(ORDER) - place for place, codes in enumerate(ORDER) for code in codes}
# Where a code without a place of its own stands, by severity: a critical one above the single contained errors.
UNPLACED: dict[Severity, int] = {"info": 0, "degraded": 1, "critical": RANK["xid94"]}

# The driver's own verdict and the bus's complaints come with a cause; they name an incident only when alone.
# So does what differs in the wiring: a check of the link, the slot or the GPU itself says why.
DRIFT = (
    "topology_gpu_missing", "topology_nvlinks", "topology_p2p", "topology_pcie_width", "topology_pcie_speed",
    "topology_nic_missing", "topology_distance",
)  # fmt: skip
COMPANIONS = ("xid154", "recovery_action", "nvml_reset_required", "xid45", "pcie_error", "pcie_link_lost", *DRIFT)

LOST = ("xid79", "gpu_lost", "gpu_silent", "nvml_lost", "nvml_unlisted")
# What the peers of a lost GPU and the switches between them report about it.
ECHOES_OF_LOST = ("xid74", "xid149", "sxid20034")


def rank(finding: Finding) -> tuple[int, int, int]:
    """Sorts findings of one incident; the largest names it."""
    companion = 0 if finding.code in COMPANIONS or finding.consequence else 1
    return companion, RANK.get(finding.code, UNPLACED[finding.severity]), SEVERITIES.index(finding.severity)
