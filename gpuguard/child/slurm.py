"""Slurm's own programs: where they are, what they are run with, and what `scontrol` says of one job.

Everything but the job's name and what stands behind the facts is Slurm's own word. The name is its owner's, stands near
the beginning of the record, and may hold blanks, `=`, line ends and whole records of other jobs, none of it escaped.
So the facts are taken only from behind the one place where the name can end; where there seem to be two, the name is
asked for by itself: `squeue -o %j` prints nothing else.

Reads   `scontrol -o -d show job ID`: one RPC about one job (REQUEST_JOB_INFO_SINGLE), 10 ms, whatever the cluster has.
        `squeue -w NODE` asks for all jobs and sifts them itself (REQUEST_JOB_INFO)
Source  Slurm 22.05.8 as observed; src/api/job_info.c, slurm_sprint_job_info; job states of slurm/slurm.h up to 25.05
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuguard.child.program import Answer, Program, Unanswered
from gpuguard.errors import Absent, NotUnderstood

# Fixed, not $PATH: one of those who run these has the right to drain.
PLACES: Final = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin", "/usr/local/sbin")
# Slurm numbers its jobs in 32 bits; more digits are no job.
JOB_NUMBER: Final = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
# No brackets, commas or blanks: scontrol would read them as a list of nodes, and ALL as every node of the cluster.
NODE_NAME: Final = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII | re.IGNORECASE)

# Whether a job of this state has processes on its nodes.
ALIVE: Final = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING",
     "EXPEDITING"}
)  # fmt: skip
NOT_ALIVE: Final = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
     "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "REVOKED", "LAUNCH_FAILED",
     "RECONFIG_FAIL"}
)  # fmt: skip

_HEAD: Final = re.compile(r"JobId=(?P<id>\d{1,10}) (?:ArrayJobId=(?P<array>\d{1,10}) ArrayTaskId=(?P<task>\S{1,200}) )?"
                          r"(?:HetJobId=(?P<het>\d{1,10}) HetJobOffset=\d+ )?JobName=", re.ASCII)  # fmt: skip
# What follows the name, and whoever wants to pass for it has to spell in the name.
_OWNER: Final = re.compile(
    r" UserId=(?P<user>[^=\n]{0,200})\((?P<uid>\d{1,10})\) GroupId=[^=\n]{0,200}\(\d{1,10}\) MCS_label=", re.ASCII
)
# From one of these on, texts of the job's owner stand in the record: its working folder, its comment.
_FREE: Final = re.compile(r" (?:MinCPUsNode|Features|Network|Command|WorkDir|Comment)=")
_FIELD: Final = re.compile(r" ([A-Za-z][A-Za-z/:]*)=(\S*)", re.ASCII)
_ON_NODES: Final = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.ASCII)
_GPUS: Final = re.compile(r"gpu(?::[^:(),]+)?:(\d{1,4})(?:\(IDX:([0-9,-]*)\))?", re.ASCII)
_SPAN: Final = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,3}):)?(\d{1,2}):(\d{2})", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_ELEMENT: Final = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_SHOWN: Final = 80


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says of one job. What it did not say is None.

    `target` is how a command that acts must name it: the bare number of an array's last task would be the whole array.
    `part` says that it is a component of a heterogeneous job.
    `gpus` and `given` are those of the node that was asked about: how many, and their numbers as 0-1,4.
    Units   run_seconds, limit_seconds: seconds; None for no limit
    """

    number: str
    target: str
    name: str
    user: str
    uid: int
    state: str
    nodes: str = ""
    node_count: int | None = None
    part: bool = False
    batch: bool | None = None
    requeue: bool | None = None
    restarts: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    run_seconds: float | None = None
    limit_seconds: float | None = None
    gpus: int | None = None
    given: str | None = None

    def alive_on(self, node: str) -> bool | None:
        """Whether it runs on this node; None for a state that this gpuguard does not know."""
        if self.state in NOT_ALIVE:
            return False
        return among(node, self.nodes) if self.state in ALIVE else None


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where slurmd keeps what its jobs need, and whether users are not told of each other's jobs."""

    spool: str
    hides_jobs: bool


class Jobs:
    """Asks Slurm of single jobs, with one deadline for a question whatever it takes."""

    def __init__(self, scontrol: str, conf: str) -> None:
        """`scontrol` is the program where it is in none of the usual folders, `conf` the slurm.conf likewise."""
        self._path = scontrol
        # An array of which many tasks run is told whole.
        self._program = Program(environment(conf), limit=1024 * 1024)

    def ask(self, number: str, node: str, until: float) -> Job | None:
        """The job as Slurm has it now, with its GPUs of `node`; None where Slurm says that there is none, which it also
        says of a job that the one who asks may not see.

        Units   until: seconds of time.monotonic()
        Raises  Unanswered when no answer came; NotUnderstood for one that says nothing for certain; Absent where this
                machine has no scontrol
        """
        if JOB_NUMBER.fullmatch(number) is None:
            raise NotUnderstood(f"not the number of a job: {number[:20]!r}", number)
        text = self._shown(number, until)
        if text is None:
            return None
        head = _headed(number, text)
        if head["array"] is not None:
            # The number of an array's last task is the array's too: only its own name gives it alone.
            text = self._shown(target_of(head), until)
            if text is None:
                return None
            head = _headed(number, text)
        ends = [match.start() for match in _OWNER.finditer(text, head.end())]
        return parse_job(text, node, ends[0] if len(ends) == 1 else self._end_of_name(text, head, until))

    def site(self, node: str, until: float) -> "Site":
        """How the cluster is set up, as far as it matters here.

        Reads   `scontrol show config`; in paths %n and %h stand for the node's name and the machine's
        Raises  as `ask`
        """
        answer = self._run("scontrol", ("show", "config"), until)
        if answer.code != 0:
            raise _failed(answer)
        spool = re.search(r"^SlurmdSpoolDir\s*= (/.*)$", answer.out, re.MULTILINE)
        private = re.search(r"^PrivateData\s*= (.*)$", answer.out, re.MULTILINE)
        if spool is None or private is None:
            raise NotUnderstood(
                "scontrol's configuration names no SlurmdSpoolDir or no PrivateData", answer.out[:_SHOWN]
            )
        folder = spool[1].strip().replace("%n", node).replace("%h", socket.gethostname().partition(".")[0])
        return Site(spool=folder, hides_jobs=not {"jobs", "all"}.isdisjoint(private[1].strip().lower().split(",")))

    def _shown(self, name: str, until: float) -> str | None:
        answer = self._run("scontrol", ("-o", "-d", "show", "job", name), until)
        if answer.code == 0:
            return answer.out
        if is_unknown(answer):
            return None
        raise _failed(answer)

    def _end_of_name(self, text: str, head: re.Match[str], until: float) -> int:
        """Where the job's name ends, by the name alone.

        Raises  as `ask`
        """
        answer = self._run("squeue", ("-h", "-t", "all", "-j", target_of(head), "-o", "%j"), until)
        name = answer.out.removesuffix("\n")
        if answer.code != 0 or not text.startswith(name, head.end()):
            raise _ambiguous(head["id"], text)
        return head.end() + len(name)

    def _run(self, name: str, arguments: Sequence[str], until: float) -> Answer:
        path = self._path or found("scontrol")
        if not path:
            raise Absent(f"no scontrol in {', '.join(PLACES)}")
        return self._program.run(path if name == "scontrol" else f"{os.path.dirname(path)}/{name}", arguments, until)


def _headed(number: str, text: str) -> re.Match[str]:
    head = _HEAD.match(text)
    if head is None or head["id"] != number:
        raise NotUnderstood(f"scontrol's answer does not begin with JobId={number}", text[:_SHOWN])
    return head


def _ambiguous(number: str, text: str) -> NotUnderstood:
    return NotUnderstood(f"what scontrol says of job {number} can be read in two ways", text[:_SHOWN])


def _failed(answer: Answer) -> Unanswered:
    return Unanswered(f"scontrol failed with exit code {answer.code} and said: {answer.said}", 10.0)


def environment(conf: str) -> Mapping[str, str]:
    """What Slurm's programs are run with: the locale and SLURM_TIME_FORMAT would change what is printed."""
    return {
        "PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard",
        **({"SLURM_CONF": conf} if conf else {}),
    }  # fmt: skip


def found(name: str) -> str:
    """The program's path; '' where this machine has none."""
    return next((path for path in (f"{place}/{name}" for place in PLACES) if os.access(path, os.X_OK)), "")


def own_node(setting: str, environ: Mapping[str, str]) -> str:
    """What Slurm calls this machine: as the site says, else as slurmd was told, else its short host name."""
    return setting or environ.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]


def is_unknown(answer: Answer) -> bool:
    """Whether Slurm says that there is no such job."""
    return answer.code != 0 and "invalid job id" in answer.said.lower()


def target_of(head: re.Match[str]) -> str:
    """How a command names this one job."""
    if head["array"] is not None and head["task"].isdigit():
        return f"{head['array']}_{head['task']}"
    return head["id"]


def parse_job(text: str, node: str, end_of_name: int) -> Job:
    """The job of the first record of a text; its name ends at `end_of_name`.

    Raises  NotUnderstood for a record without an owner behind the name, or without a state
    """
    head, owner = _HEAD.match(text), _OWNER.match(text, end_of_name)
    if head is None or owner is None:
        raise _ambiguous(head["id"] if head else "?", text)
    free = _FREE.search(text, owner.end())
    facts = text[owner.end() : free.start() if free else len(text)]
    fields: dict[str, str] = {}
    for key, value in _FIELD.findall(facts):
        fields.setdefault(key, value)
    if "JobState" not in fields:
        raise NotUnderstood(f"scontrol gives job {head['id']} no state", text[:_SHOWN])
    code, _, signal = fields.get("ExitCode", "").partition(":")
    gpus, given = gpus_on(node, facts)
    nodes = fields.get("NodeList", "")
    return Job(
        number=head["id"], target=target_of(head), name=text[head.end() : end_of_name], user=owner["user"],
        uid=int(owner["uid"]), state=fields["JobState"], nodes="" if nodes == "(null)" else nodes,
        node_count=_whole(fields.get("NumNodes", "").partition("-")[0]), batch=_flag(fields, "BatchFlag"),
        requeue=_flag(fields, "Requeue"), restarts=_whole(fields.get("Restarts", "")), exit_code=_whole(code),
        exit_signal=_whole(signal), run_seconds=parse_span(fields.get("RunTime", "")), part=head["het"] is not None,
        limit_seconds=parse_span(fields.get("TimeLimit", "")), gpus=gpus, given=given,
    )  # fmt: skip


def gpus_on(node: str, facts: str) -> tuple[int | None, str | None]:
    """How many GPUs of the node were given to the job, and their numbers; None where that is not told.

    Shape   `Nodes=node[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:h100:2(IDX:0,3-4),gpu:a100:1(IDX:5)`; GRES is empty for none
    """
    for nodes, gres in _ON_NODES.findall(facts):
        if among(node, nodes):
            parts = _GPUS.findall(gres)
            numbers = [index for _, index in parts if index]
            return sum(int(count) for count, _ in parts), ",".join(numbers) if numbers or not parts else None
    return None, None


def among(node: str, nodes: str) -> bool:
    """Whether a list of nodes names this one.

    Shape   node1,rack[1-2,07]n[3-4]: in brackets numbers and ranges of numbers, with the zeros they are written with
    """
    return any(_is_meant(node, element) for element in _ELEMENT.findall(nodes))


def _is_meant(node: str, element: str) -> bool:
    parts = re.split(r"\[([^\[\]]*)\]", element)
    pattern = "".join(r"(\d{1,9})" if place % 2 else re.escape(part) for place, part in enumerate(parts))
    match = re.fullmatch(pattern, node, re.ASCII)
    pairs = zip(match.groups(), parts[1::2], strict=True) if match is not None else ()
    return match is not None and all(any(_within(n, span) for span in spans.split(",")) for n, spans in pairs)


def _within(number: str, span: str) -> bool:
    match = _RANGE.fullmatch(span)
    if match is None:
        return False
    low, high = match[1], match[2] or match[1]
    # A range that is written with zeros means names with zeros.
    fixed = low.startswith("0") or len(low) == len(high)
    spelled = len(number) == len(low) if fixed else not number.startswith("0")
    return spelled and int(low) <= int(number) <= int(high)


def parse_span(text: str) -> float | None:
    """Seconds of Slurm's way to write a time; None for none, and for no limit.

    Shape   1-02:03:04, 02:03:04, 03:04; UNLIMITED, INVALID, Partition_Limit
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _flag(fields: Mapping[str, str], name: str) -> bool | None:
    return {"0": False, "1": True}.get(fields.get(name, ""))
