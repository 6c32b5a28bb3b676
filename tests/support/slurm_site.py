"""Slurm's programs as scripts that print records of jobs, in the form in which a real scontrol does."""

import time
from pathlib import Path

from gpuguard.child.slurm import Job, Jobs

# As Slurm 22.05.8 printed it; the second half of the name pretends to be the record.
FACTS = (
    " UserId=jo(1000) GroupId=domain users(1000) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) QOS=(null) "
    "JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=2:9 "
    "DerivedExitCode=0:0 RunTime=1-02:03:04 TimeLimit=UNLIMITED TimeMin=N/A Partition=gpu AllocNode:Sid=localhost:2974 "
    "ReqNodeList=node1 ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2 NumCPUs=2 NumTasks=1 "
    "JOB_GRES=gpu:h100:5   Nodes=node1 CPU_IDs=7 Mem=0 GRES=gpu:h100:3(IDX:0,3-4)  Nodes=node2 CPU_IDs=0-3 Mem=0 "
    "GRES=gpu:h100:2(IDX:0-1) MinCPUsNode=1 MinMemoryNode=0 Features=(null) Network=(null) Command=(null) "
    "WorkDir=/home/jo Comment={comment} StdErr=/dev/null Power= \n\n"
)
FORGED = FACTS.format(state="COMPLETED", restarts=9, comment="").rstrip("\n")


def record(name: str, *, number: str = "1", state: str = "RUNNING", restarts: int = 0, comment: str = "x") -> str:
    return f"JobId={number} JobName={name}{FACTS.format(state=state, restarts=restarts, comment=comment)}"


class Site:
    """Slurm's two programs, which print what lies beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, place in (("scontrol", '"job_$5"'), ("squeue", '"name_$5"')):
            (folder / name).write_text(
                f"#!/bin/sh\ncd {folder}\necho {name} $5 >>calls\ncat {place} 2>/dev/null && exit 0\n"
                "echo 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n"
            )
            (folder / name).chmod(0o755)

    def put(self, asked: str, text: str, name: str | None = None) -> None:
        (self.folder / f"job_{asked}").write_text(text)
        if name is not None:
            (self.folder / f"name_{asked}").write_text(f"{name}\n")

    def ask(self, number: str = "1", node: str = "node1") -> Job | None:
        return Jobs(str(self.folder / "scontrol"), "").ask(number, node, time.monotonic() + 10)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()
