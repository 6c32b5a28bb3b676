"""Does the chain work, end to end, on this node?

First a rehearsal: the real agent on a recorded machine in a temporary folder, a GPU that falls off its bus, and then
every link of the chain with its time: event, verdict, owed action, outcome (a dry run), metrics, why. Then this node:
can the kernel log be read, the memory be written, the actuator be reached. It touches no hardware and drains nothing.
--live also writes one harmless drill line into the real /dev/kmsg and waits until the running agent has counted it;
that takes root, and `trust_user_records = true` under [sources.kmsg] for the time of the drill.
Exit code 0: all is well, 1: something needs attention, 2: something does not work.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gpuguard.runtime.assembly import Parts
    from gpuguard.runtime.known import Known
    from gpuguard.runtime.rehearsal import Rehearsal

EXAMPLE = "gpuguard selftest"

MACHINE = "h100x8"
LOST_GPU = "0000:52:00.0"
# A driver prints this line for a lost GPU; the machine is made up, and so is the program.
FAULT = "NVRM: Xid (PCI:0000:52:00): 79, pid=4242, name=gpuguard-test, GPU has fallen off the bus."
# The drill: a message that the kernel held something back. It is of no GPU, it is only counted, and no policy acts on
# it; under `strict` any Xid would take a GPU out of service, so no Xid is made up on a real node.
DRILL = "gpuguard-selftest: 1 callbacks suppressed"
DRILL_COUNTER = 'gpuguard_events_total{code="",kind="log_loss"}'
DEVICE = "/dev/kmsg"
STEP_WITHIN = 10.0  # seconds; each takes some milliseconds, a loaded node is no reason to fail
DRILL_WITHIN = 5.0
SPACE_LEAST, SPACE_ENOUGH = 50 << 20, 500 << 20  # bytes; the memory stays below 50 MB by its own retention
DRY_RUN, UNREACHED = "dry_run", "delegate"  # who answers when no scheduler was asked, or nobody could be
SET_TARGET = 'set `[actuator] target = "slurm"`'
RECENT = 1_735_689_600.0  # 2025-01-01: an earlier clock was never set
EXIT_CODES = {"OK": 0, "WARN": 1, "FAIL": 2}
WIDTH = 80
INDENT = 6

Result = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was tried. `next_step` is empty when all is well; `seconds` is how long the step took."""

    name: str
    result: Result
    message: str
    next_step: str = ""
    seconds: float | None = None


def arguments(parser: ArgumentParser) -> None:
    """The options of selftest."""
    from gpuguard.runtime.known import options

    options(parser)
    parser.add_argument("--live", action="store_true", help="also send a drill line through the real kernel log")


def run(args: Namespace) -> int:
    """Prints each line as soon as it is known."""
    worst = 0
    for line in _lines(args):
        sys.stdout.write(_as_json(line) if args.json else _as_text(line))
        sys.stdout.flush()
        worst = max(worst, EXIT_CODES[line.result])
    return worst


def _lines(args: Namespace) -> Iterator[Line]:
    from gpuguard.errors import ConfigInvalid
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.clock import SystemClock
    from gpuguard.runtime.known import config_path, look_up

    yield from rehearse()
    try:
        parts = assemble(config_path(args), with_sources=False)
    except ConfigInvalid as error:
        mistakes = "; ".join(error.mistakes)
        yield Line(name="configuration", result="FAIL", message=mistakes, next_step="correct the file")
        return
    yield Line(name="configuration", result="OK", message=f"{parts.config.path or 'the shipped settings'}")
    folder = Path(args.state_dir or parts.agent.state_dir)
    known = look_up(folder, SystemClock())
    try:
        yield from node(parts, known, Path(args.root))
        yield from driver(assemble(config_path(args)), known, Path(args.root))
        if args.live:
            yield from live(parts, known)
    finally:
        known.close()


# --- the rehearsal ----------------------------------------------------------------------------------------------------


def rehearse() -> Iterator[Line]:
    """The chain from a line in a kernel log to the answer to "why", on a machine that is made up."""
    import tempfile

    from gpuguard.errors import GpuguardError
    from gpuguard.runtime.rehearsal import Rehearsal

    watch = _Watch()
    with tempfile.TemporaryDirectory(prefix="gpuguard-selftest-") as name:
        try:
            with Rehearsal(MACHINE, Path(name)) as rehearsal:
                yield Line(name="rehearsal", result="OK", message="an agent watches 8 GPUs", seconds=watch.lap())
                yield from _chain(rehearsal, watch)
        except GpuguardError as error:
            yield Line(
                name="rehearsal", result="FAIL", message=str(error), next_step="reinstall gpuguard; if that does not "
                "help, report it with `gpuguard support-bundle`", seconds=watch.lap(),
            )  # fmt: skip


def _chain(rehearsal: "Rehearsal", watch: "_Watch") -> Iterator[Line]:
    from gpuguard.model.ids import parse_pci_address

    known = len(rehearsal.story())
    rehearsal.lose(parse_pci_address(LOST_GPU))
    rehearsal.say([f"4,{rehearsal.next_record()},86400000000,-;{FAULT}"])
    # Which of the two witnesses speaks first is chance: whatever verdict makes the GPU unfit is the right one.
    for name, kind, text, detail in (
        ("event and verdict", "verdict", "", {"subject": f"gpu:{LOST_GPU}", "state": "unfit"}),
        ("owed action", "drain", "owed: drain 'gpuguard:", {}),
        ("outcome", "outcome", "dry run", {}),
    ):
        entry = rehearsal.wait_for(kind, after=known, within=STEP_WITHIN, text=text, **detail)
        if entry is None:
            yield _broken(name, f"no {kind} within {STEP_WITHIN:g} s of the line", watch)
            return
        yield Line(name=name, result="OK", message=entry.text, seconds=watch.lap())
    yield _metrics(rehearsal, watch)
    yield _why(rehearsal, watch)


def _metrics(rehearsal: "Rehearsal", watch: "_Watch") -> Line:
    wanted = (
        'gpuguard_events_total{code="79",kind="xid"} 1.0',
        f'gpuguard_subject_health{{state="unfit",subject="gpu:{LOST_GPU}"}} 1.0',
    )
    page = rehearsal.metrics()
    missing = [line for line in wanted if line not in page]
    if missing:
        return _broken("metrics", f"/metrics lacks {'; '.join(missing)}", watch)
    return Line(name="metrics", result="OK", message="they show the fault and the GPU unfit", seconds=watch.lap())


def _why(rehearsal: "Rehearsal", watch: "_Watch") -> Line:
    import subprocess

    command = [sys.executable, "-m", "gpuguard.cli", "why", LOST_GPU, "--state-dir", str(rehearsal.state_dir)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    # Its lines are wrapped for people.
    if " ".join(FAULT.split()[:4]) not in " ".join(answer.stdout.split()):
        return _broken("why", f"it does not lead back to the line: {answer.stderr or answer.stdout}", watch)
    return Line(name="why", result="OK", message="it leads back to the line in the log", seconds=watch.lap())


def _broken(name: str, message: str, watch: "_Watch") -> Line:
    step = "report it with `gpuguard support-bundle`"
    return Line(name=name, result="FAIL", message=message, next_step=step, seconds=watch.lap())


class _Watch:
    """Seconds since the step before."""

    def __init__(self) -> None:
        import time

        self._read: Callable[[], float] = time.monotonic
        self._from = self._read()

    def lap(self) -> float:
        """How long this step took; the next begins now."""
        began, self._from = self._from, self._read()
        return round(self._from - began, 3)


# --- this node --------------------------------------------------------------------------------------------------------


def node(parts: "Parts", known: "Known", root: Path) -> Iterator[Line]:
    """What the agent needs of this node, each with the next step where it is missing."""
    yield _clock(known)
    yield _kernel_log(known, root)
    yield _gpus(root)
    yield _journal(root)
    yield _memory(known)
    yield _space(known)
    yield _agent(known)
    yield _actuator(parts)


def _clock(known: "Known") -> Line:
    utc = known.now.utc
    if utc is None or utc < RECENT:
        return Line(name="clock", result="FAIL", message="it was never set", next_step="start chrony or timesyncd")
    return Line(name="clock", result="OK", message="it tells a plausible time")


def _kernel_log(known: "Known", root: Path) -> Line:
    path = root / DEVICE.lstrip("/")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if known.alive and not known.hangs and _source_level(known, "kmsg") == "watching":
            return Line(name="kernel log", result="OK", message=f"the agent reads {path}; this user may not")
        step = "run as root, or give the agent CAP_SYSLOG as its unit does"
        return Line(name="kernel log", result="FAIL", message=f"{path}: {error.strerror}", next_step=step)
    try:
        os.read(descriptor, 8192)
    except BlockingIOError:
        return Line(name="kernel log", result="WARN", message=f"{path} is empty", next_step="is this a container?")
    except BrokenPipeError:
        # Records were overwritten while it was opened: it can be read.
        return Line(name="kernel log", result="OK", message=f"{path} can be read")
    except OSError as error:
        step = "run as root, or give the agent CAP_SYSLOG as its unit does"
        return Line(name="kernel log", result="FAIL", message=f"{path}: {error.strerror}", next_step=step)
    finally:
        os.close(descriptor)
    return Line(name="kernel log", result="OK", message=f"{path} can be read")


def _source_level(known: "Known", name: str) -> str | None:
    views = known.snapshot.shell.sources if known.snapshot is not None else ()
    return next((view.level for view in views if view.name == name), None)


def _gpus(root: Path) -> Line:
    devices = root / "sys/bus/pci/devices"
    count = 0
    for vendor in devices.glob("*/vendor"):
        try:
            device_class = (vendor.parent / "class").read_text(encoding="ascii")
            count += vendor.read_text(encoding="ascii").strip() == "0x10de" and device_class.startswith("0x03")
        except (OSError, UnicodeDecodeError):
            continue  # a device that is just being removed
    if not count:
        step = "is this the right machine? `lspci -d 10de:` lists them"
        return Line(name="GPUs", result="WARN", message="no NVIDIA GPU on the PCI bus", next_step=step)
    return Line(name="GPUs", result="OK", message=f"{count} NVIDIA GPUs on the PCI bus, the second witness")


def driver(parts: "Parts", known: "Known", root: Path) -> Iterator[Line]:
    """Whether the driver's library tells of the GPUs: where it does not, nothing else says that it is missing."""
    from gpuguard.model.ids import NODE
    from gpuguard.model.readings import merged
    from gpuguard.runtime.board import measured
    from gpuguard.runtime.clock import SystemClock

    snapshot, _ = measured(parts, state_dir=known.state_dir, root=root, clock=SystemClock(root))
    told = merged(snapshot.readings.get(NODE, {}), snapshot.at)
    visible, on_bus = told.get("gpus_visible"), told.get("gpus_on_bus") or 0
    if told.get("nvml_hung") == 1:
        step = "`gpuguard check` names the call; look for Xid 119 or 120, mostly only a reboot helps"
        yield Line(name="driver", result="FAIL", message="a call of its library hangs", next_step=step)
    elif not isinstance(visible, int):
        if on_bus:
            step = (
                "is it loaded (`lsmod | grep nvidia`), is libnvidia-ml.so.1 there (`ldconfig -p | grep nvidia-ml`)? "
                "Where both are: systemctl restart gpuguard-agent"
            )
            message = "its library does not answer: the kernel log and the bus are all that is seen of the GPUs"
            yield Line(name="driver", result="WARN", message=message, next_step=step)
    elif isinstance(on_bus, int) and visible < on_bus:
        step = "`gpuguard check` and `gpuguard gpus` tell which is missing"
        yield Line(name="driver", result="WARN", message=f"tells of {visible} of {on_bus} GPUs", next_step=step)
    else:
        yield Line(name="driver", result="OK", message=f"{told.get('driver_version') or ''} tells of {visible} GPUs")


def _journal(root: Path) -> Line:
    import shutil

    if shutil.which("journalctl") and (root / "run/systemd/journal").is_dir():
        return Line(name="journal", result="OK", message="journald runs: a second log, and a stand-in for the first")
    step = "without it faults that need a second witness wait for the PCI bus; nothing else is lost"
    return Line(name="journal", result="WARN", message="no journald here", next_step=step)


def _memory(known: "Known") -> Line:
    folder = known.state_dir
    step = f"install -d -o gpuguard -g gpuguard -m 0750 {folder}; the agent's unit does so itself"
    if not folder.is_dir():
        return Line(name="memory", result="FAIL", message=f"{folder} does not exist", next_step=step)
    if os.access(folder, os.W_OK | os.X_OK):
        return Line(name="memory", result="OK", message=f"{folder} can be written")
    if known.alive:
        return Line(name="memory", result="OK", message=f"the agent writes {folder}; this user may not")
    return Line(
        name="memory", result="WARN", message=f"{folder} cannot be written by this user",
        next_step="ask again as root or as the agent's user",
    )  # fmt: skip


def _space(known: "Known") -> Line:
    import shutil

    folder = next((f for f in (known.state_dir, *known.state_dir.parents) if f.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    message = f"{free >> 20} MB free in {folder}"
    if free < SPACE_LEAST:
        return Line(name="space", result="FAIL", message=message, next_step="make room: nothing is acted on unwritten")
    if free < SPACE_ENOUGH:
        return Line(name="space", result="WARN", message=message, next_step="make room before it is full")
    return Line(name="space", result="OK", message=message)


def _agent(known: "Known") -> Line:
    if not known.alive:
        step = "systemctl enable --now gpuguard-agent; until then nobody watches this node"
        return Line(name="agent", result="WARN", message="no agent runs", next_step=step)
    if known.hangs or known.age is None:
        age = "never" if known.age is None else f"{known.age:.0f} s ago"
        step = "see `gpuguard status`; systemctl restart gpuguard-agent"
        return Line(name="agent", result="FAIL", message=f"its last sign of life was {age}", next_step=step)
    return Line(name="agent", result="OK", message=f"runs as pid {known.pid}, last heard {known.age:.0f} s ago")


def _actuator(parts: "Parts") -> Line:
    from gpuguard.actuators import delegate

    # Through the socket, as the agent would; that a person could reach the scheduler otherwise is no proof.
    report = delegate.build(parts.config.settings("actuators.delegate")).read_state()
    if report.error is None:
        return Line(name="actuator", result="OK", message=f"the scheduler knows this node as {report.node}")
    wanted = str(parts.config.settings("actuator").target)
    observes = parts.policy.dry_run
    if report.target == DRY_RUN and observes and wanted == DRY_RUN:
        return Line(
            name="actuator", result="OK", message=f"it answers, as a dry run; before it may drain, {SET_TARGET}"
        )
    step = _actuator_step(report.target, wanted)
    if report.target == DRY_RUN:
        return Line(
            name="actuator", result="WARN", message="its target is a dry run: no drain is written", next_step=step
        )
    when = "needed before [policy] mode becomes drain" if observes else "no drain can be written now"
    result: Result = "WARN" if observes else "FAIL"
    return Line(name="actuator", result=result, message=report.error, next_step=f"{when}: {step}")


def _actuator_step(answered: str, wanted: str) -> str:
    """What brings the actuator to its scheduler; `answered` is who answered, `wanted` the target it is to have."""
    if answered == DRY_RUN and wanted != DRY_RUN:
        return "it still has its old configuration: systemctl stop gpuguard-actuator.service; it starts by itself"
    if answered == DRY_RUN:
        return f"{SET_TARGET}, then systemctl stop gpuguard-actuator.service; it starts by itself"
    if answered == "kubernetes":
        return "its message names what is missing: the address, the token, or a right; docs/kubernetes.md has a table"
    if answered == "bundled":
        return "its message names what is missing: the scheduler's address, its token, or this node's name there"
    if answered != UNREACHED:
        return "`scontrol ping` tells whether slurmctld is up, `scontrol show node` by which name it knows this node"
    target = f"{SET_TARGET}, then " if wanted == DRY_RUN else ""
    return f"{target}systemctl enable --now gpuguard-actuator.socket, and as root or a member of its group ask again"


# --- the drill --------------------------------------------------------------------------------------------------------


def live(parts: "Parts", known: "Known", *, device: str = DEVICE) -> Iterator[Line]:
    """One harmless line went through the real kernel log into the running agent's counters, or why not."""
    if not known.alive:
        yield Line(name="drill", result="FAIL", message="no agent runs", next_step="start it and ask again")
        return
    settings = parts.config.settings("sources.kmsg")
    if not settings.trust_user_records:
        yield Line(
            name="drill", result="FAIL", message="the agent does not believe what a process writes into the log",
            next_step="set `trust_user_records = true` under [sources.kmsg], restart the agent, ask again, and take it "
            "back: whoever may write to /dev/kmsg could fake a lost GPU meanwhile",
        )  # fmt: skip
        return
    watch = _Watch()
    before = _counted(parts.agent.listen)
    if before is None:
        step = "set [agent] listen, or ask with the configuration that the agent was started with"
        yield Line(name="drill", result="FAIL", message=f"no /metrics on {parts.agent.listen}", next_step=step)
        return
    try:
        descriptor = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"<6>{DRILL}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        yield Line(name="drill", result="FAIL", message=f"{device}: {error.strerror}", next_step="ask again as root")
        return
    yield _await_drill(parts.agent.listen, before, watch)


def _await_drill(listen: str, before: float, watch: _Watch) -> Line:
    import time

    ends = time.monotonic() + DRILL_WITHIN
    while time.monotonic() < ends:
        now = _counted(listen)
        if now is not None and now > before:
            return Line(name="drill", result="OK", message="the agent counted the drill line", seconds=watch.lap())
        time.sleep(0.02)
    return Line(
        name="drill", result="FAIL", message=f"the agent did not count the line within {DRILL_WITHIN:g} s",
        next_step="was it restarted after trust_user_records was set? See `gpuguard status`", seconds=watch.lap(),
    )  # fmt: skip


def _counted(listen: str) -> float | None:
    """How many lines of the drill's kind the agent has counted; None when it does not answer."""
    import urllib.request

    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{listen}/metrics", timeout=2.0) as page:
            text = page.read().decode()
    except (OSError, ValueError):
        return None
    for line in text.splitlines():
        if line.startswith(DRILL_COUNTER):
            return float(line.rpartition(" ")[2])
    return 0.0


# --- telling ----------------------------------------------------------------------------------------------------------


def _as_json(line: Line) -> str:
    import msgspec

    row = {
        "name": line.name, "result": line.result, "message": line.message, "next_step": line.next_step or None,
        "seconds": line.seconds,
    }  # fmt: skip
    return msgspec.json.encode(row).decode() + "\n"


def _as_text(line: Line) -> str:
    import textwrap

    took = f" ({line.seconds:.3f} s)" if line.seconds is not None else ""
    paper = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * INDENT, break_on_hyphens=False)
    out = paper.wrap(f"{line.result:<4}  {line.name}: {line.message}{took}")
    if line.result != "OK":
        out += paper.wrap(f"{'':<{INDENT}}next: {line.next_step}")
    return "\n".join(out) + "\n"
