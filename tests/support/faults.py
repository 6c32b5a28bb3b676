"""Lines that the catalogue calls self-evident, and the drain that follows from one; shared by the tests of the core."""

import msgspec

from gpuguard.model.events import ActionOutcome, AnyEvent
from tests.support.core import Core

PCI = "0000:5e:00"
SELF_EVIDENT = {
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 2",
    62: "2b0f 3c11 00000000 00000000",
    64: "Row Remapper Error: (0x0000000000a1b200) - All reserved rows for bank are remapped",
    79: "GPU has fallen off the bus.",
    95: "Uncontained: FBHUB. RST: Yes, D-RST: No",
    110: "",
    119: "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL) (0x1 0x2)",
    120: "GSP task exception",
    140: "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0, PCIE:0",
    143: "",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}  # fmt: skip


def outcome(key: str, result: str, mono: float, message: str = "") -> ActionOutcome:
    return msgspec.convert(
        {
            "event": "action_outcome", "id": f"outcome:{key}:{mono}", "key": key, "result": result, "message": message,
            "at": {"boot": "aaaaaaaa-0000-4000-8000-000000000001", "mono": mono, "utc": 1_750_000_000.0 + mono},
        },
        ActionOutcome,
    )  # fmt: skip


def drained(core: Core, *events: AnyEvent) -> str:
    """The token of the drain that the events led to, after the target said that it is done."""
    core.tell(*events)
    drain = core.health.drain
    assert drain is not None
    core.tell(outcome(f"drain:{drain.token}:0", "done", events[-1].at.mono + 0.1))
    return drain.token
