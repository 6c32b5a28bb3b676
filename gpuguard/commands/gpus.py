"""The GPUs now: health, load, memory, links, and who uses them.

Asks the agent that runs, else looks by itself. UTIL, SM, TENS and DRAM are percent, TEMP is degrees Celsius. A dash
stands for what a GPU does not have, a question mark for what was asked for without an answer; neither is ever 0. With
`--watch` the table is shown anew until it is interrupted.
Exit codes  0 all healthy, 1 one is not, 2 no GPU, 64 usage error
"""

import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuguard.model.health import Snapshot, SubjectView
    from gpuguard.model.ids import SubjectId
    from gpuguard.model.readings import Value, Values

EXAMPLE = "gpuguard gpus --watch"

EVERY = 2.0
CLEAR = "\x1b[H\x1b[2J"
HEAD = "GPU STATE     TEMP  POWER W     UTIL   SM TENS DRAM  MEMORY GiB  LINKS PROC"
WHOSE_WIDTH = HEAD.index("TEMP") + len("TEMP")
GIB = 2.0**30
JOB_WIDTH = 21
# What the table shows of a GPU.
SHOWN = frozenset((
    "temperature_celsius", "power_watts", "power_limit_watts", "utilization_ratio", "sm_active_ratio",
    "tensor_active_ratio", "dram_active_ratio", "memory_used_bytes", "memory_total_bytes", "nvlinks_active",
    "process_count",
))  # fmt: skip

# Any: the answer is JSON, which mixes types.
Facts = dict[str, Any]


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    parser.add_argument("--watch", action="store_true", help="show it anew, until Ctrl-C")
    parser.add_argument("--every", metavar="S", type=_pause, default=EVERY, help=f"seconds (default: {EVERY:g})")
    options(parser)


def _pause(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no number of seconds") from error
    if not 0.2 <= seconds <= 3600:
        raise ArgumentTypeError("is to be from 0.2 to 3600 seconds")
    return seconds


def run(args: Namespace) -> int:
    """Prints the table.

    Raises  Absent where there is no GPU
    """
    from pathlib import Path

    from gpuguard.errors import Absent
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.board import measured
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, is_remembered, state_dir

    root, parts = Path(args.root), assemble(config_path(args))
    clock = SystemClock(root)
    memory = state_dir(args) if is_remembered(args) else None
    while True:
        snapshot, taken_by = measured(parts, state_dir=memory, root=root, clock=clock)
        gpus = list(_gpus(snapshot))
        if not gpus:
            raise Absent("no GPU is known here: no driver answers and none is on the bus; see `gpuguard status`")
        people = _user if root == Path("/") else _nobody
        text = _json(snapshot, gpus, taken_by, people) if args.json else _page(snapshot, gpus, people)
        sys.stdout.write((CLEAR if args.watch and sys.stdout.isatty() else "") + text)
        sys.stdout.flush()
        if not args.watch:
            return 0 if all(_state(view, values) == "healthy" for _, view, values in gpus) else 1
        time.sleep(args.every)


# Who a process belongs to.
Whose = Callable[[int], str | None]
Gpu = tuple["SubjectId", "SubjectView | None", "Values"]


def _gpus(snapshot: "Snapshot") -> Iterator[Gpu]:
    """Every GPU that is known, by its index: its name, verdict and measurements."""
    from gpuguard.model.ids import kind_of

    views = {view.id: view for view in snapshot.subjects}
    names = sorted(name for name in {*views, *snapshot.readings} if kind_of(name) == "gpu")
    found: list[Gpu] = [(name, views.get(name), _measured(snapshot, name)) for name in names]
    yield from sorted(found, key=lambda gpu: (_number(gpu[2], "gpu_index", 1e9), gpu[0]))


def _measured(snapshot: "Snapshot", gpu: "SubjectId") -> "Values":
    """What is known of the GPU. What the driver's library told slowly holds for long: without a quick answer it is not
    known whether the GPU is up, whatever else still holds."""
    from gpuguard.model.readings import merged

    groups = snapshot.readings.get(gpu, {})
    values = merged(groups, snapshot.at)
    if "gpu_up" not in values and any(group.source == "nvml" for group in groups.values()):
        values["gpu_up"] = None
    return values


def _number(values: "Mapping[str, Value]", name: str, otherwise: float) -> float:
    value = values.get(name)
    return value if isinstance(value, int | float) else otherwise


# --- the table -------------------------------------------------------------------------------------------------------


def _page(snapshot: "Snapshot", gpus: list[Gpu], people: "Whose") -> str:
    from gpuguard.runtime.words import page

    rows = [line for gpu in gpus for line in (_row(*gpu), *_instances(snapshot, gpu[0]))]
    below = [*(list(_hang(snapshot)) or _unmeasured(gpus)), *_standing(gpus)]
    parts = [*_machine(snapshot, gpus), HEAD, *rows, *([""] if below else []), *below]
    return page([*parts, *_who(snapshot, gpus, people)])


def _machine(snapshot: "Snapshot", gpus: list[Gpu]) -> list[str]:
    """When this was, which products they are and under which driver, as far as it is known."""
    from collections import Counter

    from gpuguard.model.ids import NODE
    from gpuguard.model.readings import merged
    from gpuguard.runtime.words import date, paragraph

    products = Counter(name for _, _, values in gpus if isinstance(name := values.get("gpu_name"), str))
    node = merged(snapshot.readings.get(NODE, {}), snapshot.at)
    told = [f"{count} x {name}" for name, count in products.items()]
    versions = (("driver", "driver_version"), ("CUDA", "cuda_version"))
    told += [f"{what} {version}" for what, column in versions if isinstance(version := node.get(column), str)]
    return paragraph(f"{date(snapshot.at.utc)}  {', '.join(told)}".rstrip(), hanging=2)


def _is_measured(values: "Values") -> bool:
    """Whether the driver told anything of the GPU that is not too old."""
    return values.get("gpu_up", 1) == 1 and not SHOWN.isdisjoint(values)


def _unmeasured(gpus: list[Gpu]) -> Iterator[str]:
    """Why there are rows of question marks."""
    from gpuguard.runtime.words import paragraph

    silent = sum(not _is_measured(values) for _, _, values in gpus)
    if silent == len(gpus):
        yield from paragraph(
            "nothing is measured: the driver does not answer. `lsmod | grep nvidia` tells whether it is loaded, "
            "`gpuguard check` whether it hangs"
        )
    elif silent:
        yield f"the driver tells nothing of {silent} of {len(gpus)} GPUs"


def _row(name: "SubjectId", view: "SubjectView | None", values: "Values") -> str:
    index = _shown(values, "gpu_index", "{:.0f}")
    state = _state(view, values)
    if not _is_measured(values):
        values = {column: values.get(column) for column in SHOWN}
    power = f"{_shown(values, 'power_watts', '{:.0f}'):>4}/{_shown(values, 'power_limit_watts', '{:.0f}')}"
    used, total = (_shown(values, f"memory_{what}_bytes", "{:.1f}", GIB) for what in ("used", "total"))
    shares = " ".join(
        f"{_shown(values, f'{what}_ratio', '{:.0f}', 0.01):>4}"
        for what in ("utilization", "sm_active", "tensor_active", "dram_active")
    )
    processes = _shown(values, "process_count", "{:.0f}")
    short = index if index not in "-?" else name.removeprefix("gpu:0000:").removeprefix("gpu:")
    whose = f"{short:<3} {state}"
    heat = _shown(values, "temperature_celsius", "{:.0f}")
    return (
        f"{whose}{heat:>{max(4, WHOSE_WIDTH - len(whose))}}  {power:<9}  {shares}  "
        f"{used:>5}/{total:<5} {_links(values):>6} {processes:>4}"
    ).rstrip()


def _state(view: "SubjectView | None", values: "Values") -> str:
    """The verdict; one that nothing stands against is not well as long as it does not answer, or nobody asked it."""
    if view is not None and view.state != "healthy":
        return view.state
    return "healthy" if _is_measured(values) else "unknown"


def _mig(snapshot: "Snapshot", gpu: "SubjectId") -> "list[Values]":
    """What is known of each MIG instance of a GPU, by its number."""
    from gpuguard.model.readings import merged

    prefix = f"mig:{gpu.removeprefix('gpu:')}/"
    found = [merged(groups, snapshot.at) for name, groups in snapshot.readings.items() if name.startswith(prefix)]
    return sorted(found, key=lambda values: _number(values, "mig_gpu_instance", 0))


def _instances(snapshot: "Snapshot", gpu: "SubjectId") -> Iterator[str]:
    """The MIG instances of a GPU, below it."""
    for values in _mig(snapshot, gpu):
        used, total = (_shown(values, f"mig_memory_{what}_bytes", "{:.1f}", GIB) for what in ("used", "total"))
        shares = " ".join(
            f"{_shown(values, f'mig_{what}_active_ratio', '{:.0f}', 0.01):>4}"
            for what in ("graphics", "sm", "tensor", "dram")
        )
        profile = values.get("mig_profile")
        name = f"gi {_shown(values, 'mig_gpu_instance', '{:.0f}')} {profile if isinstance(profile, str) else '?'}"
        yield f"  {name:<28}  {shares}  {used:>5}/{total}".rstrip()


def _shown(values: "Mapping[str, Value]", name: str, form: str, unit: float = 1.0) -> str:
    """A value as people read it; `-` for what is absent, `?` for what is unknown."""
    if name not in values:
        return "-"
    value = values[name]
    return form.format(value / unit) if isinstance(value, int | float) else "?"


def _links(values: "Mapping[str, Value]") -> str:
    active = _shown(values, "nvlinks_active", "{:.0f}")
    links = values.get("nvlink_up")
    expected = _shown(values, "nvlinks_expected", "{:.0f}")
    whole = expected if expected not in "-?" else (str(len(links)) if isinstance(links, tuple) else "-")
    return active if whole == "-" else f"{active}/{whole}"


def _hang(snapshot: "Snapshot") -> Iterator[str]:
    """That the driver hangs: nothing in the table says so while it is not too old."""
    from gpuguard.model.ids import NODE
    from gpuguard.runtime.words import paragraph

    for view in snapshot.subjects:
        for finding in view.findings if view.id == NODE else ():
            if finding.check == "nvml_unresponsive":
                yield from paragraph(f"node {finding.severity} {finding.code}: {finding.reason}", hanging=2)


def _standing(gpus: list[Gpu]) -> Iterator[str]:
    """What stands against each GPU, in a few words."""
    from gpuguard.runtime.words import paragraph

    for name, view, values in gpus:
        for finding in view.findings if view is not None else ():
            if finding.severity != "info":
                whom = _shown(values, "gpu_index", "gpu {:.0f}")
                whom = whom if whom not in "-?" else name.removeprefix("gpu:")
                yield from paragraph(f"{whom} {finding.severity} {finding.code}: {finding.reason}", hanging=2)


def _who(snapshot: "Snapshot", gpus: list[Gpu], people: "Whose") -> Iterator[str]:
    """The processes on each GPU, the largest first; whose job they are of, where anybody told."""
    from gpuguard.runtime.words import cell, padded

    found = [(values, process) for name, _, values in gpus for process in _processes(snapshot, name, people)]
    jobs = any(process["job"] is not None for _, process in found)
    if found:
        yield ""
        yield f"{'GPU':<5}{'PID':>7}  {'USER':<12} {'GiB':>6}  {'JOB' if jobs else '':<{JOB_WIDTH * jobs}}PROCESS"
    for values, process in found:
        whose = padded(process["job"] or ("?" if process["job"] is None else "-"), JOB_WIDTH - 1) + " " if jobs else ""
        yield (
            f"{_where(values, process['mig']):<5}{process['pid']:>7}  {process['user'] or '-':<12.12} "
            f"{_gib(process['memory']):>6}  {whose}{cell(process['name'] or '-', 24 if jobs else 40)}"
        )


def _where(values: "Values", instance: object) -> str:
    """The GPU, and behind a slash the MIG instance where it is in one."""
    index = _shown(values, "gpu_index", "{:.0f}")
    return index if instance is None else f"{index}/{instance}"


def _gib(value: object) -> str:
    return f"{value / GIB:.1f}" if isinstance(value, int | float) else "?"


def _processes(snapshot: "Snapshot", gpu: "SubjectId", people: "Whose") -> list[Facts]:
    from gpuguard.model.readings import merged

    prefix = f"process:{gpu.removeprefix('gpu:')}/"
    found = []
    for name, groups in snapshot.readings.items():
        if not name.startswith(prefix) or not name[len(prefix) :].isdecimal():
            continue
        values = merged(groups, snapshot.at)
        if values:
            pid = int(name[len(prefix) :])
            found.append(
                {
                    "pid": pid, "name": values.get("process_name"),
                    "user": values.get("process_user") or people(pid), "kind": values.get("process_kind"),
                    "memory": values.get("process_memory_bytes"), "mig": values.get("process_mig"),
                    "job": values.get("process_job"),
                }
            )  # fmt: skip
    return sorted(found, key=lambda process: (-(process["memory"] or 0), process["pid"]))


def _nobody(pid: int) -> str | None:
    """A recorded machine's processes are nobody's here."""
    return None


def _user(pid: int) -> str | None:
    """Whose a process is, as this machine knows it; None for one that is gone."""
    import os
    import pwd

    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _json(snapshot: "Snapshot", gpus: list[Gpu], taken_by: str, people: "Whose") -> str:
    import json

    facts: Facts = {
        "at": snapshot.at.utc, "from": taken_by,
        "gpus": [
            {
                "subject": name, "uuid": view.uuid if view is not None else values.get("gpu_uuid"),
                "state": _state(view, values),
                "findings": [finding.code for finding in view.findings] if view is not None else [],
                "readings": dict(sorted(values.items())), "instances": _mig(snapshot, name),
                "processes": _processes(snapshot, name, people),
            }
            for name, view, values in gpus
        ],
    }  # fmt: skip
    return json.dumps(facts) + "\n"
