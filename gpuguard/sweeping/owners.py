"""Whose process it is: the job that its control group names.

Reads   the text of /proc/<pid>/cgroup, and variables of its environment
Source  cgroups(7); Slurm src/plugins/cgroup/v2/cgroup_v2.c (job_<id>/step_<step>/user/task_<n> below
        [<node>_]slurmstepd.scope) and its v1 (/slurm[_<node>]/uid_<uid>/job_<id>/step_<step>/task_<n>); Kubernetes
        pkg/kubelet/cm (kubepods[-<qos>]-pod<uid>.slice or kubepods/<qos>/pod<uid>); the scopes of containerd, CRI-O,
        cri-dockerd, Docker and podman (<runtime>-<64 hex digits>.scope); systemd.unit(5), systemd-run(1)

Where several keepers stand in one path, a scheduler comes before a container and a container before a unit; among
their like the innermost one counts. So a process in a pod on a node that is itself a container belongs to the pod, one
of a Slurm job whose slurmd runs in a pod to the Slurm job, and one that a job starts in Docker below its own group to
the job. podman's containers are named docker/<id> too: neither is a scheduler, and both print ids of the same form.

Only root makes groups of the system. What lies below a user's own manager (user@<uid>.service) that user has made, and
may call as they like: there no name of a scheduler is believed. The environment is the word of whoever started the
process: it is believed only where the group names no job (as with Slurm's proctrack/linuxproc), and Owner.vouched
tells. What a user started who logged in is not believed at all: no slurmd but one that root started by hand has its
jobs there, and whoever says so uses a GPU past the scheduler, or speaks for somebody else's job.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpuguard.model.ids import JobId
from gpuguard.model.jobs import Owner, job_id

# Of a v1 hierarchy there are some 13 lines, and a path is at most a page; more is no file of the kernel's.
LINES = 64
DEPTH = 128
SHORT = 12  # digits of a container's id, as its tools print it
SLURM_JOB, SLURM_STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"
VARIABLES = (SLURM_JOB, SLURM_STEP)  # that are of use here
STEPS = 2**31  # above are Slurm's numbers for steps without one

_UNIT, _CONTAINER, _SCHEDULER = 1, 2, 3

_SLURM_TOP = re.compile(r"(?:.*_)?slurmstepd(?:\.scope)?|slurm(?:_.+)?", re.ASCII)
_SLURM_USER = re.compile(r"uid_(\d{1,10})", re.ASCII)
_SLURM_JOB = re.compile(r"job_(\d{1,20})", re.ASCII)
_SLURM_STEP = re.compile(r"step_([\w.+-]{1,64})", re.ASCII)
_PODS = re.compile(r"(?:[a-z0-9]+-)*kubepods(?:\.slice)?", re.ASCII)
_POD_SLICE = re.compile(
    r"(?:[a-z0-9]+-)*kubepods(?:-burstable|-besteffort|-guaranteed)?-pod([\w.]{1,64})\.slice"
    r"(?::[\w-]+:([0-9a-f]{64}))?",
    re.ASCII,
)
_POD = re.compile(r"pod([\w.-]{1,64})", re.ASCII)
_CONTAINER_ID = re.compile(
    r"(?:(?:docker|libpod|nerdctl|cri-containerd|containerd|crio)-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII
)
_OURS = re.compile(r"gpuguard-job-(.{1,128})\.(?:scope|service)")
_SLURMD = re.compile(r"/slurmd(?:@[^/]*)?\.service(?:/|$)")
_USER_SLICE = re.compile(r"user-(\d{1,10})\.slice", re.ASCII)
_USER_MANAGER = re.compile(r"user@(\d{1,10})\.service", re.ASCII)
_UNIT_NAME = re.compile(r".+\.(?:service|scope)")
# Units that are no job: what people log in by, services that start jobs for others, and those of the GPU stack.
NO_JOB = re.compile(
    r"session-c?\d+\.scope|init\.scope|user-runtime-dir@.*|"
    r"(?:ssh|sshd|getty|serial-getty|cron|crond|atd|anacron|display-manager|gdm3?|sddm|lightdm)(?:@.*)?\.service|"
    r"(?:.*_)?slurmstepd\.scope|slurm(?:d|ctld|dbd|restd)(?:@.*)?\.service|"
    r"(?:docker|containerd|crio|cri-docker|podman|kubelet|k3s|k3s-agent|rke2-server|rke2-agent)\.service|"
    r"(?:libpod|crio)-conmon-.*|gpuguard(?:-actuator|-scheduler)?\.service|"
    r"(?:nvidia-(?:persistenced|fabricmanager|imex|powerd|cdi-refresh|mig-manager|dcgm.*)|dcgm.*|nv-hostengine|nvsm.*)"
    r"\.service",
    re.ASCII,
)
# Of a user's own manager: windows of a desktop, in which people type.
_DESKTOP = re.compile(r"(?:app|vte-spawn|tmux-spawn|dbus|org\.gnome|plasma)[-.:].*")


class _Claim(NamedTuple):
    """What one path says; of several the greatest is right: they are ordered by their kind, then by their depth."""

    kind: int
    keepers: int
    has_part: bool
    job: JobId
    part: str


def owner_of(cgroup: str, variables: Mapping[str, str] = {}) -> Owner:
    """The job that a process belongs to, by its control group, and where that names none by its environment.

    Shape   lines of `number:controllers:/path`, with v2 the one line `0::/path`; " (deleted)" follows one that is gone
    """
    best: _Claim | None = None
    user: int | None = None
    # Not splitlines: the kernel allows any byte but a line feed in a name, and a form feed must not begin a line.
    for line in cgroup.split("\n", LINES)[:LINES]:
        path = line.split(":", 2)[-1] if line.count(":") >= 2 else ""
        claim, uid = _claim(path.removesuffix(" (deleted)"))
        user = uid if user is None else user
        if claim is not None and (best is None or claim[:3] > best[:3]):
            best = claim
    if best is not None:
        return Owner(job=best.job, part=best.part, user=user)
    number = variables.get(SLURM_JOB, "")
    if not user and _SLURM_JOB.fullmatch(f"job_{number}"):
        step = variables.get(SLURM_STEP, "")
        known = step.isascii() and step.isdigit() and len(step) <= len(str(STEPS)) and int(step) < STEPS
        return Owner(job=job_id("slurm", number), part=step if known else "", user=user, vouched=False)
    return Owner(job=None, user=user)


def leaves_open(cgroup: str) -> bool:
    """Whether the group says nothing of who started the process, so that only its environment could tell: it is in no
    group at all, or where slurmd leaves its jobs when it keeps them in none."""
    paths = [line.split(":", 2)[-1] for line in cgroup.split("\n", LINES)[:LINES] if line.count(":") >= 2]
    return all(path == "/" for path in paths) or any(_SLURMD.search(path) for path in paths)


def _claim(path: str) -> tuple[_Claim | None, int | None]:
    """The strongest claim of one path, and the user that it names."""
    kind, keepers, part, user = 0, 0, "", None
    job: JobId | None = None
    below_slurm = below_pods = by_user = wants_step = wants_container = False
    for name in path.split("/")[:DEPTH]:
        if not name or name == "..":
            continue  # from within a container's namespace, groups outside of it begin with these
        if wants_step:
            step = _SLURM_STEP.fullmatch(name)
            part = step[1] if step else ""
        wants_step = False
        found: tuple[int, JobId] | None = None
        if match := _USER_MANAGER.fullmatch(name):
            by_user, user = True, int(match[1])
        elif match := (_SLURM_USER.fullmatch(name) or _USER_SLICE.fullmatch(name)):
            user = int(match[1])
            below_slurm = below_slurm or name.startswith("uid_")
        elif _SLURM_TOP.fullmatch(name):
            below_slurm = True
        elif below_slurm and not by_user and (match := _SLURM_JOB.fullmatch(name)):
            found, part, wants_step, wants_container = (_SCHEDULER, job_id("slurm", match[1])), "", True, False
        elif not by_user and (match := _POD_SLICE.fullmatch(name)):
            uid, container = match[1].replace("_", "-"), match[2]
            found, part = (_SCHEDULER, job_id("kubernetes", uid)), (container or "")[:SHORT]
            wants_container = container is None
        elif below_pods and not by_user and (match := _POD.fullmatch(name)):
            found, part, wants_container = (_SCHEDULER, job_id("kubernetes", match[1])), "", True
        elif match := _CONTAINER_ID.fullmatch(name):
            if wants_container:
                part, wants_container = match[1][:SHORT], False
            else:
                found = (_CONTAINER, job_id("docker", match[1][:SHORT]))
        elif not by_user and (match := _OURS.fullmatch(name)):
            found, part, wants_container = (_SCHEDULER, job_id("gpuguard", match[1])), "", False
        elif _UNIT_NAME.fullmatch(name) and not (NO_JOB.fullmatch(name) or (by_user and _DESKTOP.match(name))):
            found = (_UNIT, job_id("systemd", name))
        below_pods = below_pods or bool(_PODS.fullmatch(name))
        if found is not None:
            keepers += 1
            if found[0] >= kind:
                kind, job = found
    return (None if job is None else _Claim(kind, keepers, bool(part), job, part)), user
