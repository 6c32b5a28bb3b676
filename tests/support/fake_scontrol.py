"""A `scontrol` for one node named `here`, as a shell script: it keeps a state and a reason and misbehaves on demand.

It also keeps jobs, each a file with its record as `scontrol -o -d show job` prints it, and requeues them.
"""

import shlex
from pathlib import Path

SCRIPT = """\
#!/bin/sh
cd {folder} || exit 9
printf '%s\\n' "$*" >>calls
if [ -f "trap_$1" ]; then . "./trap_$1"; fi
state=$(cat state) reason=$(cat reason)
case "$1 $2" in
'-o -d')
  cat "job_$5" 2>/dev/null || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
  exit
  ;;
requeue*)
  job=job_$2
  [ -f "$job" ] || {{ echo "Invalid job id specified for job $2" >&2; exit 1; }}
  if grep -q ' Requeue=0 ' "$job"; then echo "Requested operation is presently disabled for job $2" >&2; exit 1; fi
  if ! grep -q 'JobState=RUNNING' "$job"; then echo "Job is pending execution for job $2" >&2; exit 1; fi
  sed -i 's/JobState=RUNNING/JobState=COMPLETING/; s/Restarts=0/Restarts=1/' "$job"
  exit
  ;;
esac
case $1 in
-o)
  [ "${{4-here}}" = here ] || {{ echo "Node $4 not found"; exit 1; }}
  tail=
  written=2026-03-04T19:02:55
  [ "$SLURM_TIME_FORMAT" = standard ] || written=$(cat since)
  [ -z "$reason" ] || tail=" Reason=$reason [root@$written]"
  [ -n "$4" ] || cat others
  gres="Gres=gpu:h100:8 OS=Linux 6.8.0 #1 SMP  Boards=1"
  echo "NodeName=here Arch=x86_64 $gres State=$state ThreadsPerCore=2 ExtSensorsTemp=n/s$tail"
  ;;
reboot)
  [ "$2" = here ] && [ $# = 2 ] || {{ echo "Invalid input: $*" >&2; exit 1; }}
  printf '%s' "$state+REBOOT_REQUESTED" >state
  ;;
update)
  shift 2
  for word; do
    case $word in
    state=drain) state=${{state%+DRAIN}}+DRAIN ;;
    state=undrain | state=resume)
      case $state in
      *+DRAIN) state=${{state%+DRAIN}} reason= ;;
      *) echo "slurm_update error: Invalid node state specified" >&2; exit 1 ;;
      esac
      ;;
    reason=*) reason=${{word#reason=}}; date +%s >since ;;
    *) echo "Invalid input: $word" >&2; exit 1 ;;
    esac
  done
  printf '%s' "$state" >state
  printf '%s' "$reason" >reason
  ;;
esac
"""


USUAL = {
    "JobName": "train", "Priority": "4294901759", "Nice": "0", "Account": "(null)", "QOS": "(null)",
    "JobState": "RUNNING", "Reason": "None", "Dependency": "(null)", "Requeue": "1", "Restarts": "0", "BatchFlag": "1",
    "Reboot": "0", "ExitCode": "0:0", "RunTime": "00:10:00", "TimeLimit": "1-00:00:00", "NodeList": "here",
    "BatchHost": "here", "NumNodes": "1", "JOB_GRES": "gpu:h100:2",
    " Nodes": "here CPU_IDs=7 Mem=0 GRES=gpu:h100:2(IDX:0-1)",
    "MinCPUsNode": "1", "WorkDir": "/home/jo",
}  # fmt: skip


class FakeScontrol:
    """The script at `path`, and the node it speaks of."""

    node = "here"

    def __init__(self, folder: Path, state: str = "IDLE", reason: str = "") -> None:
        self.folder = folder
        self.path = folder / "scontrol"
        self.path.write_text(SCRIPT.format(folder=shlex.quote(str(folder))))
        self.path.chmod(0o755)
        self.set(state, reason)
        (folder / "since").write_text("1772650975")
        (folder / "others").touch()

    def put_others(
        self, count: int, since: float, reason: str = "gpuguard:{0:04x} gpu3 lost xid{0}", *, of: int
    ) -> None:
        """So many nodes besides this one, the first `count` of them drained by gpuguard since then."""
        records = [
            f"NodeName=n{n} Gres=gpu:h100:8 State=IDLE+DRAIN Owner=N/A Reason={reason.format(n)} [root@{int(since)}]"
            if n < count else f"NodeName=n{n} Gres=gpu:h100:8 State=IDLE Owner=N/A"
            for n in range(of)
        ]  # fmt: skip
        (self.folder / "others").write_text("".join(f"{record}\n" for record in records))

    def set(self, state: str, reason: str = "") -> None:
        """The node is in this state, as somebody else left it."""
        (self.folder / "state").write_text(state)
        (self.folder / "reason").write_text(reason)

    def put_job(self, number: str, **fields: str) -> None:
        """Slurm has this job, with the fields of a usual one but for these."""
        said = {**USUAL, **fields}
        head = f"JobId={number} JobName={said.pop('JobName')} UserId=jo(1000) GroupId=jo(1000) MCS_label=N/A"
        (self.folder / f"job_{number}").write_text(f"{head} {' '.join(f'{k}={v}' for k, v in said.items())} \n\n")

    def trap(self, command: str, shell: str) -> None:
        """Each `show` or `update` runs these shell lines first; '' ends it."""
        (self.folder / f"trap_{'-o' if command == 'show' else command}").write_text(f"{shell}\n")

    @property
    def state(self) -> str:
        """The node's state now."""
        return (self.folder / "state").read_text()

    @property
    def reason(self) -> str:
        """The reason without its tail."""
        return (self.folder / "reason").read_text()

    @property
    def calls(self) -> list[str]:
        """The command lines it was called with, in order."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def writes(self) -> list[str]:
        """Those that change something."""
        return [call for call in self.calls if call.startswith(("update", "requeue", "reboot"))]
