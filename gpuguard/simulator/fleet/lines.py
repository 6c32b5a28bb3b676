"""What the driver prints into the kernel's log when something breaks, line by line.

The texts are those of the driver's own format strings, with the values of an invented machine; the agent's grammars
read them, and nothing here tells it what they mean.

Source  open-gpu-kernel-modules 570 to 595, as in fixtures/scenarios; a storm of 800,000 lines of Xid 95, 29 of them
        distinct: NVSentinel issue 1120
Assumes the driver notices a fault half a second after it on the mean, and a system processor that stopped after six
"""

from collections.abc import Callable, Sequence

import msgspec

from gpuguard.model.ids import PciAddress
from gpuguard.simulator.chance import Stream
from gpuguard.simulator.fleet.causes import Signature

# What the lines of a storm come to, and how many of them differ.
STORM_LINES = 800_000
STORM_TEXTS = 29
STORM_LASTS = 600.0
REMAPPED = "Row Remapper: New row (0x000000000001c3a4) marked for remapping, reset gpu to activate."


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `after` is how long after the fault it is printed; `repeated` how many of its like were merged."""

    after: float
    text: str
    repeated: int = 1


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that it is about: `pci` as the driver prints it, without the function."""

    pci: str
    index: int
    uuid: str


def place(address: PciAddress, index: int, uuid: str) -> Place:
    """The GPU at an address, as the driver prints it."""
    return Place(pci=address.rpartition(".")[0], index=index, uuid=uuid)


def printed(signature: Signature, where: Place, dice: Stream) -> tuple[Printed, ...]:
    """All that is printed because of the fault, in order; nothing for what the driver never speaks of."""
    written = _WRITTEN.get(signature)
    if written is None:
        return ()
    late = 6.0 if signature == "gsp" else min(dice.exponential(0.5), 5.0)
    return tuple(
        Printed(after=late + after, text=text, repeated=repeated) for after, text, repeated in written(where, dice)
    )


def again(signature: Signature, where: Place) -> tuple[Printed, ...]:
    """What is printed when the driver comes up on a node where the fault still is."""
    if signature in ("lost", "lost_silently"):
        return (Printed(after=8.0, text=f"NVRM: GPU {where.pci}.0: RmInitAdapter failed! (0x24:0x72:1511)"),)
    return ()


_Lines = Sequence[tuple[float, str, int]]


def _xid(where: Place, code: int, words: str) -> str:
    return f"NVRM: Xid (PCI:{where.pci}): {code}, {words}"


def _process(dice: Stream) -> str:
    return f"pid={dice.whole(2000, 60000)}, name=python3"


def _recovery(where: Place, number: int) -> str:
    names = {1: "GPU Reset Required", 2: "Node Reboot Required", 4: "Drain and Reset"}
    return _xid(where, 154, f"GPU recovery action changed from 0x0 (None) to {number:#x} ({names[number]})")


def _address(dice: Stream) -> str:
    return f"{dice.whole(1 << 20, 1 << 32):#x}"


def _lost(where: Place, dice: Stream) -> _Lines:
    return (
        (0.000, f"NVRM: GPU at PCI:{where.pci}: {where.uuid}", 1),
        (0.001, _xid(where, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), 1),
        (0.002, f"NVRM: GPU {where.pci}.0: GPU has fallen off the bus.", 1),
        (0.080, _recovery(where, 2), 1),
    )


def _halted(where: Place, dice: Stream) -> _Lines:
    process = _process(dice)
    return (
        (0.0, _xid(where, 62, f"{process}, 0x2b0a, 0x00000000, 0x00000000"), 1),
        (0.2, _recovery(where, 1), 1),
        (0.3, _xid(where, 45, f"{process}, channel 0x00000002 caused by previous Xid 62"), 1),
    )


def _double_bit(where: Place, dice: Stream) -> _Lines:
    process, at = _process(dice), _address(dice)
    words = "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr"
    return (
        (0.000, _xid(where, 48, f"{process}, {words} {at} partition 12, subpartition 1."), 1),
        (0.002, _xid(where, 171, f"{process}, Uncorrectable DRAM error occurred at {at}"), 1),
        (0.010, _xid(where, 63, REMAPPED), 1),
        (0.018, _xid(where, 94, f"{process}, Contained: FBHUB (0x1). RST: No, D-RST: Yes"), 1),
        (0.025, _recovery(where, 4), 1),
    )  # fmt: skip


def _uncontained(where: Place, dice: Stream) -> _Lines:
    return (
        (0.00, _xid(where, 95, f"{_process(dice)}, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"), 1),
        (0.05, _recovery(where, 1), 1),
    )


def _no_spare_row(where: Place, dice: Stream) -> _Lines:
    words = "Row Remapper Error: (0x000000000001c3a4) - All reserved rows for bank are remapped"
    return ((0.0, _xid(where, 64, words), 1), *((at + 0.05, text, n) for at, text, n in _uncontained(where, dice)))


def _contained(where: Place, dice: Stream) -> _Lines:
    return (
        (0.0, _xid(where, 63, REMAPPED), 1),
        (0.01, _xid(where, 94, f"{_process(dice)}, Contained: FBHUB (0x1). RST: No, D-RST: Yes"), 1),
    )  # fmt: skip


def _sram(where: Place, dice: Stream) -> _Lines:
    words = "An uncorrectable double bit error (DBE) has been detected on GPU in the SRAM"
    return ((0.0, _xid(where, 48, f"{_process(dice)}, {words}"), 1), (0.05, _recovery(where, 1), 1))


def _gsp(where: Place, dice: Stream) -> _Lines:
    call = (
        f"waiting for RPC response from GPU{where.index} GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a0f 0x4)."
    )
    text = _xid(where, 119, f"{_process(dice)}, Timeout after 6s of {call}")
    limit = f"Rate limiting GSP RPC error prints for GPU at PCI:{where.pci} (printing 1 of every 30)."
    limit = f"NVRM: {limit}  The GPU likely needs to be reset."
    return ((0.0, text, 1), (6.0, text, 1), (12.0, limit, 1), (192.0, text, 30), (200.0, _recovery(where, 1), 1))


def _storm(where: Place, dice: Stream) -> _Lines:
    every, many = STORM_LASTS / STORM_TEXTS, STORM_LINES // STORM_TEXTS
    process = _process(dice)
    return tuple(
        (
            number * every,
            _xid(where, 95, f"{process}, Uncontained: LTC TAG ({number:#x},0x0). RST: Yes, D-RST: No"),
            1 if number == 0 else many,
        )
        for number in range(STORM_TEXTS)
    )


def _nvlink(where: Place, dice: Stream) -> _Lines:
    registers = "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    return ((0.0, _xid(where, 74, f"NVLink: fatal error detected on link {dice.whole(0, 17)}{registers}"), 1),)


def _program(where: Place, dice: Stream) -> _Lines:
    """A program reads where it may not: one to thirty lines of one kind."""
    process, count = _process(dice), dice.whole(1, 30)
    channel = f"channel {dice.whole(1, 63):#010x}"
    match dice.whole(0, 3):
        case 0:
            places = (f"(GPC {dice.whole(0, 7)}, TPC {dice.whole(0, 8)}, SM 0)" for _ in range(count))
            words = [f"Graphics SM Warp Exception on {at}: Out Of Range Address" for at in places]
            texts = [_xid(where, 13, f"{process}, {word}") for word in words]
        case 1:
            fault = "MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_5 faulted @ 0x7e10_a0004000."
            fault += " Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
            texts = [_xid(where, 31, f"{process}, {channel}, intr 00000000. {fault}")] * count
        case 2:
            texts = [_xid(where, 43, f"{process}, {channel}")] * count
        case _:
            texts = [_xid(where, 45, f"{process}, {channel}")] * count
    return tuple((0.001 * number, text, 1) for number, text in enumerate(texts))


_WRITTEN: dict[Signature, Callable[[Place, Stream], _Lines]] = {
    "lost": _lost, "halted": _halted, "double_bit": _double_bit, "uncontained": _uncontained,
    "no_spare_row": _no_spare_row, "contained": _contained, "sram": _sram, "gsp": _gsp, "storm": _storm,
    "nvlink": _nvlink, "program": _program,
}  # fmt: skip
