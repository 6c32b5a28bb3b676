"""Plays a recorded machine with an incident, from log line to drain, and a job that hangs.

Starts the real agent, observe-only, on a copy of a recorded machine with eight GPUs, lets a program fail on one of
them and another one fall off the bus, and tells each step: what the kernel printed, what gpuguard made of it, what it
would do and why. Meanwhile a small real training job gets stuck, which no log tells of. Nothing outside a temporary
folder is touched. On a terminal the agent keeps running afterwards, so that you can look around, until Ctrl-C.
"""

import contextlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.model.story import StoryEntry
    from gpuguard.runtime.rehearsal import Rehearsal

EXAMPLE = "gpuguard demo --speed 2"

MACHINE = "h100x8"
INCIDENT = "incident.kmsg"
DRIVER = "/proc/driver/nvidia/version"
WIDTH = 80
LABEL = 10
READING_TIME = 4.0  # seconds between two scenes at speed 1
# Longer than any honest step takes; the whole demo stays well under a minute.
PATIENCE = 5.0
QUIET = 0.4  # seconds without a new sentence: the scene is over
PARAGRAPHS_SHOWN = 3
QUESTIONS = ("why", "status", "check", "gpus", "hang", "history")
# The job that hangs: its last rank takes a lock twice after so many steps of some 20 ms.
JOB, RANKS, STUCK_AT = "demo", 4, 100
HANG = "job_hung"
# A limit that was learned of such steps is half a minute.
HANG_WITHIN = 60.0
METRICS = (
    'gpuguard_events_total{code="79"', 'gpuguard_events_total{code="13"', 'gpuguard_subject_health{state="unfit"',
    'gpuguard_subject_health{state="watched"',
)  # fmt: skip
OF_THE_JOB = ("job", "rank")
LABELS = {
    "verdict": "verdict", "drain": "drain", "release": "release", "outcome": "answer", "source": "source",
}  # fmt: skip


def arguments(parser: ArgumentParser) -> None:
    """The options of the demo."""
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="how fast it is told (default: 1)")
    parser.add_argument("--policy", choices=("default", "strict", "observe"), default="default")
    parser.add_argument("--json", action="store_true", help="one JSON object a step")
    parser.add_argument("--exit", action="store_true", help="end with the story, also on a terminal")


def run(args: Namespace) -> int:
    """Exit code 0; 2 when the agent cannot be started or does not see the incident."""
    import signal
    import tempfile

    from gpuguard.errors import ReadFailed, UsageError
    from gpuguard.runtime.rehearsal import Rehearsal

    if not 0 < args.speed < float("inf"):
        raise UsageError(f"--speed: {args.speed:g} is no number above 0; try 2")
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Like Ctrl-C: the agent is ended and the folder removed, whoever ends the demo.
        signal.signal(number, signal.default_int_handler)
    stage = _Stage(as_json=args.json, speed=args.speed)
    # The agent's socket lies in this folder, and its path may be no longer than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuguard-demo-") as name:
        folder = Path(name)
        here = "no NVIDIA driver on this machine: " if not Path(DRIVER).exists() else ""
        stage.tell("scene", f"{here}playing a recorded 8-GPU machine")
        stage.tell("where", f"a copy of {MACHINE} in {folder}; nothing outside it is touched")
        rehearsal = Rehearsal(MACHINE, folder, policy=args.policy)
        try:
            with rehearsal:
                stays = sys.stdout.isatty() and not (args.exit or args.json)
                with _job(rehearsal):
                    if not _play(stage, rehearsal):
                        raise ReadFailed("the agent did not see the incident; please report it")
                    if not _hang(stage, rehearsal):
                        raise ReadFailed("the agent did not see the hang; please report it")
                    _look_back(stage, rehearsal)
                    if not stays:
                        return 0
                    _invite(stage, rehearsal)
                    stage.tell("scene", "the agent keeps running for you to look around; Ctrl-C ends it")
                    _wait_until_interrupted(rehearsal)
        except KeyboardInterrupt:
            stage.tell("scene", "ended")
    return 0


def _play(stage: "_Stage", rehearsal: "Rehearsal") -> bool:
    """Whether the incident led to a verdict."""
    from gpuguard.kernel_log.reader import parse_text, read_line

    snapshot = rehearsal.snapshot() or {}
    stage.tell("agent", f"runs, observe-only: it decides everything and acts on nothing. {snapshot.get('line')}")
    unfit = False
    for words, records in scenes((rehearsal.root / INCIDENT).read_text(encoding="utf-8")):
        stage.pause()
        stage.tell("scene", words)
        known = len(rehearsal.story())
        for record in records:
            text = read_line(record).text
            parsed = parse_text(text)
            stage.tell("kernel", text)
            if parsed is not None and parsed.xid == 79 and parsed.pci is not None:
                rehearsal.lose(parsed.pci)
        rehearsal.say(records)
        for entry in _what_follows(rehearsal, known):
            stage.tell(LABELS[entry.kind], f"{_short(entry)}")
            unfit = unfit or entry.detail.get("state") == "unfit"
    stage.pause()
    return unfit


@contextlib.contextmanager
def _job(rehearsal: "Rehearsal") -> "Iterator[None]":
    """A real training job runs, which will get stuck; all of its processes are ended with the block."""
    import os
    import signal
    import subprocess

    command = [sys.executable, "-m", "gpuguard.progress.example", "--job", JOB, "--ranks", str(RANKS)]
    command += ["--fault", "deadlock", "--at", str(STUCK_AT)]
    environment = {
        **os.environ, "GPUGUARD_SOCKET": str(rehearsal.socket), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    job = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _hang(stage: "_Stage", rehearsal: "Rehearsal") -> bool:
    """Whether the agent noticed that the job is stuck; it was told who is behind, and why that is thought."""
    import time

    stage.tell(
        "scene",
        f"No log tells of the next one. Since the beginning a training job of {RANKS} processes runs on this node. "
        f"After {STUCK_AT} steps one of them got stuck, and the others wait for it; to every monitor they look busy.",
    )
    ends = time.monotonic() + HANG_WITHIN
    while rehearsal.runs() and time.monotonic() < ends:
        told = next((e for e in rehearsal.story() if e.kind == "verdict" and e.detail.get("finding") == HANG), None)
        if told is not None:
            stage.tell(LABELS["verdict"], _short(told))
            stage.pause()
            stage.tell("scene", "Who is behind, and how does gpuguard know? `gpuguard hang` answers:")
            stage.say_all("hang", _answer(rehearsal, "hang"), indent="")
            return True
        time.sleep(0.1)
    return False


def scenes(text: str) -> Iterator[tuple[str, list[str]]]:
    """What is told, and the records that go with it.

    Shape   `# words`, one or more lines, then records of /dev/kmsg, again and again
    """
    words: list[str] = []
    records: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") and records:
            yield " ".join(words), records
            words, records = [], []
        if line.startswith("#"):
            words.append(line.lstrip("# "))
        elif line:
            records.append(line)
    if records:
        yield " ".join(words), records


def _what_follows(rehearsal: "Rehearsal", known: int) -> "Iterator[StoryEntry]":
    """The sentences that the agent writes, until it falls silent."""
    import time

    from gpuguard.model.ids import kind_of

    ends = time.monotonic() + PATIENCE
    quiet_since: float | None = None
    while time.monotonic() < ends and rehearsal.runs():
        entries = rehearsal.story()[known:]
        known += len(entries)
        yield from (entry for entry in entries if entry.kind in LABELS and kind_of(entry.subject) not in OF_THE_JOB)
        now = time.monotonic()
        if entries or quiet_since is None:
            quiet_since = now if entries else None
        elif now - quiet_since > QUIET:
            return
        time.sleep(0.02)


def _short(entry: "StoryEntry") -> str:
    """The sentence, with whom it is about in front of a verdict."""
    if entry.kind != "verdict":
        return entry.text
    state = entry.detail.get("state")
    return f"{entry.subject}: {entry.text.replace(f'{state} -> {state}', f'stays {state}')}"


def _look_back(stage: "_Stage", rehearsal: "Rehearsal") -> None:
    """The metrics that tell of it, why it happened, and where to read on."""
    stage.tell("scene", "What Prometheus sees of it:")
    lines = rehearsal.metrics().splitlines()
    stage.say_all("metrics", [line for line in lines if line.startswith(METRICS) and not line.endswith(" 0.0")])
    stage.tell("scene", "Why? The chain from the drain back to the log line begins so:")
    stage.say_all("why", _why(rehearsal))
    stage.tell("scene", "What to do next, up to a drained Slurm node, stands in docs/first-steps.md.")


def _invite(stage: "_Stage", rehearsal: "Rehearsal") -> None:
    """What a person would type next, while the agent runs."""
    stage.tell("scene", "Look around yourself, in another terminal:")
    program = _program()
    questions = [f"{program} {ask} --state-dir {rehearsal.state_dir}" for ask in QUESTIONS]
    stage.say_all("commands", [*questions, f"curl http://{rehearsal.address()}/metrics"])


def _why(rehearsal: "Rehearsal") -> list[str]:
    """The beginning of what `gpuguard why` answers: the drain, the GPU, and the finding that decided."""
    paragraphs = "\n".join(_answer(rehearsal, "why")).split("\n\n")
    return "\n\n".join(paragraphs[:PARAGRAPHS_SHOWN]).splitlines()


def _answer(rehearsal: "Rehearsal", question: str) -> list[str]:
    """What another command answers."""
    import subprocess

    command = [sys.executable, "-m", "gpuguard.cli", question, "--state-dir", str(rehearsal.state_dir)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (answer.stdout or answer.stderr).splitlines()


def _program() -> str:
    """How a person calls the gpuguard that runs now."""
    import os
    import shutil

    beside = os.path.join(os.path.dirname(sys.executable), "gpuguard")
    if shutil.which("gpuguard") or not os.path.exists(beside):
        return "gpuguard"
    return min(os.path.relpath(beside), beside, key=len)


def _wait_until_interrupted(rehearsal: "Rehearsal") -> None:
    import time

    while rehearsal.runs():
        time.sleep(0.5)


class _Stage:
    """Tells the story, for people in 80 columns or as JSON."""

    def __init__(self, *, as_json: bool, speed: float) -> None:
        import time

        self._as_json, self._speed = as_json, speed
        self._began = time.monotonic()

    def pause(self) -> None:
        """Time to read."""
        import time

        if not self._as_json:
            time.sleep(READING_TIME / self._speed)

    def tell(self, step: str, words: str) -> None:
        """One step of the story."""
        import textwrap
        import time

        if self._as_json:
            import msgspec

            row = {"step": step, "at_s": round(time.monotonic() - self._began, 3), "text": words}
            sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        elif step == "scene":
            sys.stdout.write("\n" + "\n".join(textwrap.wrap(words, WIDTH)) + "\n")
        else:
            hanging = " " * LABEL
            head = f"  {step:<{LABEL - 2}}"
            lines = textwrap.wrap(words, WIDTH, initial_indent=head, subsequent_indent=hanging, break_on_hyphens=False)
            sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def say_all(self, step: str, lines: list[str], indent: str = "  ") -> None:
        """Lines of another command, as they are; some fill all of the 80 columns."""
        if self._as_json:
            self.tell(step, "\n".join(lines))
        else:
            sys.stdout.write("".join(f"{indent}{line}".rstrip() + "\n" for line in lines))
            sys.stdout.flush()
