"""Xid reports: `NVRM: Xid (PCI:dddd:bb:dd[ GPU-I:nn[ GPU-CI:nn]]): CODE[, pid=P, name=N], TEXT`.

Shape   the code is read from the header, never searched for: a process can put any text into its name. Old drivers
        print no `PCI:`, no process or no domain; a truncated line ends anywhere behind the code
Source  open-gpu-kernel-modules 515 to 595, src/nvidia/src/kernel/gpu/gpu.c and every nvErrorLog call; before 2009
        `Xid (bus:device)`
"""

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from gpuguard.kernel_log.addresses import BUS_DEVICE, FULL, read_address
from gpuguard.model.events import DetailValue, Parsed

Detail = dict[str, DetailValue]

TASK_NAME_LENGTH = 15  # TASK_COMM_LEN less its NUL, include/linux/sched.h
NVLINK5 = range(144, 151)
RECOVERY_ACTION = 154
FALLEN_OFF = 79

_HEADER = re.compile(
    rf"NVRM: +Xid \((?:PCI:)?({FULL}|{BUS_DEVICE})(?: +GPU-I:(\d+))?(?: +GPU-CI:(\d+))?\): *(\d{{1,6}})(?!\d)", re.ASCII
)
_PID = re.compile(r"pid=(?:(\d{1,10})|[^,]{0,24})(?:, *|$)", re.ASCII)
_NO_NAME = re.compile(r"'?<[^>]*>?'?$|\*+$|\(null\)$")
_CAUSED_BY = re.compile(r" caused by previous Xid (\d+)", re.ASCII)

# How the texts begin that the driver puts behind a name; they tell where a name with a comma ends.
_KNOWN_TEXT = re.compile(
    r"(?:Ch|ChID|[Cc]hannel|channel ID) (?:0x)?[0-9a-f]|[Cc]hannel ID |Graphics |Timeout |Row Remapper|Bank Remapper|"
    r"An uncorrectable |NVLink|Contained|Uncontained|GPU |GSP |Head |errorString |engmask |intr |BAD_TSG|"
    r"DRAM |GDDR|HBM|Class Error|"
    r"SM |CMDre |PE\d{4}|[0-9a-f]{8} [0-9a-f]{8}|\w+ +(?:Fatal|Nonfatal) |Attempting |Dynamic |Disabling |Re-enabling |"
    r"Retiring |Unable |Marking |Repairing |RC |Preempt|PMU |Reset |MMU Fault|CTX |Ctx |Invalid |Shader |Illegal "
)


def _number(text: str) -> int:
    return int(text, 16)


def _channel(body: str) -> Detail:
    match = re.match(
        r"(?:(?:Ch|[Cc]hannel(?: ID)?) (?:0x)?|(?:Graphics Exception|Class Error): ChI[Dd] (?:0x)?)([0-9a-f]{1,8})\b",
        body,
    )
    return {"channel": _number(match[1])} if match else {}


def _graphics(body: str) -> Detail:
    """Which SM of which cluster, and what it did: the fact that tells one bad SM from a bad program."""
    if match := re.match(
        r"Graphics (?:SM )?(Warp|Global) Exception on \(GPC (\d+), TPC (\d+)(?:, SM (\d+))?\)(?:: *(.*))?", body
    ):
        kind, gpc, tpc, sm, reason = match.groups()
        told: Detail = {"sub": f"{kind.lower()}_exception", "gpc": int(gpc), "tpc": int(tpc)}
        if sm is not None:
            told["sm"] = int(sm)
        if reason and reason.strip():
            told["reason"] = reason.strip()
        return told
    if body.startswith("Graphics Exception: ESR "):
        return {"sub": "esr", "esr": {**dict(re.findall(r"(0x[0-9a-f]+)=(0x[0-9a-f]+)", body))}}
    if match := re.match(
        r"(?:Graphics Exception|Class Error): ChI[Dd] [0-9a-fx]+, Class ([0-9a-fx]+)"
        r"(?:, Offset ([0-9a-fx]+))?(?:, Data ([0-9a-fx]+))?",
        body,
    ):
        told = {"sub": "class"}
        for name, value in zip(("class", "offset", "data"), match.groups(), strict=True):
            if value:
                told[name] = value
        return told
    return {}


def _fault(body: str) -> Detail:
    told: Detail = {}
    if match := re.search(r"\bintr ([0-9a-f]{8})\b", body):
        told["intr"] = match[1]
    if match := re.search(r"\bengmask ([0-9a-f]+)", body):
        told["engmask"] = match[1]
    if match := re.search(
        r"MMU Fault: ENGINE (\S+)(?: (GPC\d+))?(?: (\S*CLIENT\S*))?(?: faulted @ (0x[0-9a-f_]+))?", body
    ):
        names = ("engine", "gpc", "client", "address")
        told |= {name: value for name, value in zip(names, match.groups(), strict=True) if value}
    if match := re.search(r"Fault is of type (\w+)(?: (ACCESS_TYPE_\w+))?", body):
        told["fault_type"] = match[1]
        if match[2]:
            told["access_type"] = match[2]
    return told


def _head(body: str) -> Detail:
    match = re.match(r"Head ([0-9a-f]{8})(?: Count ([0-9a-f]{8}))?", body)
    if match is None:
        return {}
    told: Detail = {"head": _number(match[1])}
    if match[2]:
        told["count"] = _number(match[2])
    return told


def _words(body: str) -> Detail:
    return {"words": [*body.split()]} if re.fullmatch(r"[0-9a-f]{8}(?: +[0-9a-f]{8})+", body) else {}


def _memory(body: str) -> Detail:
    """Where in the GPU's memory an uncorrectable error sits (48, 171, 172 and the per-channel forms)."""
    told: Detail = {}
    if match := re.search(r"\bphysAddr:? (0x[0-9a-f]+)", body):
        told["phys_addr"] = match[1]
    if re.search(r"\bin the framebuffer\b", body):
        told["location"] = "framebuffer"
    elif "Uncorrectable DRAM" in body:
        told["location"] = "dram"
    elif re.search(r"\bS?RAM\b", body) and "uncorrectable" in body.lower():
        told["location"] = "sram"
    if match := re.match(r"(GDDR|HBM)\w*, ", body):
        told["memory"] = match[1]
    for name, word in (("partition", "partition"), ("subpartition", "subpartition"), ("fbpa", "FBPA")):
        if match := re.search(rf"\b{word} (\d+)", body):
            told[name] = int(match[1])
    return told


_ROW_SUBS = (
    ("marked for remapping", "remap_pending"),
    ("reserved rows for bank are remapped", "bank_full"),
    ("table is full", "table_full"),
    ("already pending", "already_pending"),
    ("no spare", "no_spare"),
    ("New retired page", "retire_pending"),
    ("unable to retire page", "retire_failed"),
)


def _row(body: str) -> Detail:
    """Which row is to be remapped and whether it can be; before Ampere whole pages were retired instead."""
    told: Detail = {}
    if match := re.search(r"\((0x[0-9a-f]+)\)", body):
        told["page" if "etire" in body else "row"] = match[1]
    for words, sub in _ROW_SUBS:
        if words in body:
            told["sub"] = sub
            break
    return told


def _nvlink(body: str) -> Detail:
    told: Detail = {}
    if match := re.search(r"\blink (-?\d+)(?:\(([^)]*)\)?)?", body):
        told["link"] = int(match[1])
        if registers := re.findall(r"0x[0-9a-f]+", match[2] or ""):
            told["regs"] = registers
    if "failed to train" in body:
        told["sub"] = "train_failed"
    if match := re.search(rf"remote PCI:({FULL})", body):
        told["remote_pci"] = read_address(match[1])
    return told


def _containment(body: str) -> Detail:
    match = re.match(r"(Contained|Uncontained): (.+?)(?=[.,]? +(?:RST|D-RST|physAddr):|\.?$)", body)
    if match is None:
        return {}
    told: Detail = {"containment": match[1].lower(), "unit": match[2]}
    for name, word in (("rst", "RST"), ("d_rst", "D-RST")):
        if answer := re.search(rf"(?<![\w-]){word}: (Yes|No)\b", body):
            told[name] = answer[1] == "Yes"
    if address := re.search(r"\bphysAddr:? (0x[0-9a-f]+)", body):
        told["phys_addr"] = address[1]
    return told


def _switch_timeout(body: str) -> Detail:
    match = re.search(r"errorString (.+?)(?:, Info (0x[0-9a-f]+)|,?$)", body)
    if match is None:
        return {}
    return {"error": match[1]} | ({"info": match[2]} if match[2] else {})


def _rpc(body: str) -> Detail:
    """Which firmware call did not return; the process named in the line is only who waited for it."""
    told: Detail = {}
    if match := re.match(r"Timeout after (\d+)s", body):
        told["timeout_s"] = int(match[1])
    if match := re.search(r"\bGPU(\d+) GSP\b|\bGSP(\d+)!", body):
        told["gsp_gpu"] = int(match[1] or match[2])
    if match := re.search(r"Expected function (\d+)(?: \((\w+)\))?", body):
        told["function"] = int(match[1])
        if match[2]:
            told["function_name"] = match[2]
    if match := re.search(r"\bsequence (\d+)", body):
        told["sequence"] = int(match[1])
    if match := re.search(r"\((0x[0-9a-f]+) (0x[0-9a-f]+)\)", body):
        told["data"] = [match[1], match[2]]
    return told


def _task_exception(body: str) -> Detail:
    match = re.match(r"GSP task (?:exception|timeout|panic): (.+?)(?: \(cause:(0x[0-9a-f]+)\)| @|$)", body)
    if match is None:
        return {}
    return {"exception": match[1]} | ({"cause": match[2]} if match[2] else {})


def _counters(body: str) -> Detail:
    """The counters of 140; signed, because the driver prints them with %d and they have been seen to wrap."""
    return {name.lower(): int(value) for name, value in re.findall(r"\b(DRAM|LTC|MMU|PCIE):(-?\d+)", body)}


def _link5(body: str) -> Detail:
    match = re.match(
        r"(\w+) +(Fatal|Nonfatal)\b(?: +XC *(\d+))?(?: +i *(\d+))?(?: +Link +(-?\d+))?(.*)", body, re.DOTALL
    )
    if match is None:
        return {}
    told: Detail = {"unit": match[1], "severity": match[2]}
    for name, value in (("xc", match[3]), ("injected", match[4]), ("link", match[5])):
        if value is not None:
            told[name] = int(value)
    if registers := re.findall(r"0x[0-9a-f]+", match[6]):
        told["regs"] = registers
    return told


def _recovery(body: str) -> Detail:
    """The action by its number; the driver has renamed the texts twice."""
    told: Detail = {}
    for name, before in (("from", "changed from"), ("to", r"\) to")):
        if match := re.search(rf"{before} (?:0x)?([0-9a-f]+)(?: \(([^)]*)\)?)?", body):
            told[name] = _number(match[1])
            if match[2]:
                told[f"{name}_text"] = match[2]
    if "to_text" in told:
        told["recovery_action"] = told["to_text"]
    return told


_Facts = tuple[Callable[[str], Detail], ...]
_BY_CODE: Mapping[int, _Facts] = {
    13: (_channel, _graphics),
    16: (_head,),
    56: (),
    48: (_channel, _memory),
    61: (_words,),
    62: (_words,),
    63: (_row,),
    64: (_row,),
    74: (_nvlink,),
    92: (),
    94: (_channel, _containment),
    95: (_channel, _containment),
    109: (_channel, _switch_timeout),
    119: (_rpc,),
    120: (_task_exception,),
    140: (_counters,),
    154: (_recovery,),
    156: (),
    157: (),
    160: (),
    161: (),
    171: (_channel, _memory),
    172: (_channel, _memory),
} | dict.fromkeys(NVLINK5, (_link5,))
_BY_DEFAULT: _Facts = (_channel, _graphics, _fault, _switch_timeout)


def _split_name(rest: str) -> tuple[str, str]:
    """The task's name and the driver's text behind it: the longest name behind which a text of the driver begins."""
    commas = [at for at in range(min(len(rest), TASK_NAME_LENGTH + 1)) if rest.startswith(", ", at)]
    for at in reversed(commas):
        if _KNOWN_TEXT.match(rest, at + 2):
            return rest[:at], rest[at + 2 :]
    if not commas and len(rest.rstrip(", ")) > TASK_NAME_LENGTH and ", " in rest:
        name, _, text = rest.partition(", ")  # no task's name; somebody's test or a renamed thread
        return name, text
    at = commas[0] if commas else len(rest)
    return rest[:at].rstrip(", ") if at == len(rest) else rest[:at], rest[at + 2 :]


def _split_process(rest: str) -> tuple[int | None, str | None, str]:
    """Pid, name and text; None for what the driver did not know or somebody masked."""
    pid = None
    if match := _PID.match(rest):
        pid = int(match[1]) if match[1] else None
        rest = rest[match.end() :]
    if not rest.startswith("name="):
        return pid, None, rest
    name, text = _split_name(rest.removeprefix("name="))
    return pid, None if not name or _NO_NAME.match(name) else name, text


def _fatal(code: int, detail: Detail) -> bool | None:
    if code == FALLEN_OFF:
        return True
    if code == RECOVERY_ACTION:
        return detail["to"] != 0 if "to" in detail else None
    if code in NVLINK5 and "severity" in detail:
        return detail["severity"] == "Fatal"
    return None


class Xid:
    """Understands every Xid, known code or not."""

    markers: ClassVar[tuple[bytes, ...]] = (b"Xid (",)

    def parse(self, text: str) -> Parsed | None:
        header = _HEADER.match(text)
        if header is None:
            return None
        address, gpu_instance, compute_instance, digits = header.groups()
        code = int(digits)
        pid, process, body = _split_process(text[header.end() :].lstrip(", \t"))
        detail: Detail = {}
        if caused_by := _CAUSED_BY.search(body):
            detail["caused_by"] = int(caused_by[1])
        for facts in _BY_CODE.get(code, _BY_DEFAULT):
            detail |= facts(body)
        if gpu_instance is not None:
            detail["gpu_instance"] = int(gpu_instance)
        if compute_instance is not None:
            detail["compute_instance"] = int(compute_instance)
        return Parsed(
            kind="xid",
            xid=code,
            pci=read_address(address),
            pid=pid,
            process=process,
            fatal=_fatal(code, detail),
            detail=detail,
        )
