#!/bin/sh
# gpuguard-slurm-qos.sh [CLUSTER]: the QOS of gpuguard's tiers and levels; run it as a Slurm administrator where
# slurmdbd answers. It may be run again at any time. Written by `gpuguard scheduler render --for slurm`.
set -eu
cluster=${1:-$(scontrol show config | sed -n 's/^ClusterName *= //p')}
give() { name=$1 && shift && sacctmgr -i modify qos where name="$name" set "$@"; }

if [ -z "$(sacctmgr -nP show tres where type=gres name=gpu format=id)" ]; then
  echo "slurmdbd counts no GPUs: set AccountingStorageTRES in slurm.conf, restart slurmctld, try again" >&2
  exit 1
fi

# All are made before any is named in the Preempt of another.
known=$(sacctmgr -nP show qos format=name)
missing=
for name in interactive-high resumable-high training-high batch-high background-high interactive-normal resumable-normal training-normal batch-normal background-normal interactive-low resumable-low training-low batch-low background-low; do
  echo "$known" | grep -qxF "$name" || missing=$missing,$name
done
[ -z "$missing" ] || sacctmgr -i add qos "${missing#,}"

# The high level holds at most 20% of 1040 GPUs. Slurm caps each QOS alone, so the whole is dealt out over them; move
# some from one to another, but keep the sum. What is over waits; ours would run as normal.
# -1 takes a limit away that was set before. DenyOnLimit refuses at submission what could never start.
give background-low Priority=1 PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=0 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give batch-low Priority=2 PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give training-low Priority=3 Preempt=batch-low PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give resumable-low Priority=3 Preempt=batch-low PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give interactive-low Priority=4 PreemptMode=cluster GraceTime=0 MaxWall=01:00:00 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give background-normal Priority=5 PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=0 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give batch-normal Priority=6 Preempt=resumable-low,batch-low PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give training-normal Priority=7 Preempt=batch-normal,resumable-low,batch-low PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give resumable-normal Priority=7 Preempt=batch-normal,resumable-low,batch-low PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give interactive-normal Priority=8 PreemptMode=cluster GraceTime=0 MaxWall=01:00:00 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give background-high Priority=9 PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=0 GrpTRES=gres/gpu=-1 Flags=DenyOnLimit
give batch-high Priority=10 Preempt=resumable-normal,batch-normal,resumable-low,batch-low PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=52 Flags=DenyOnLimit
give training-high Priority=11 Preempt=batch-high,resumable-normal,batch-normal,resumable-low,batch-low PreemptMode=cluster GraceTime=0 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=52 Flags=DenyOnLimit
give resumable-high Priority=11 Preempt=batch-high,resumable-normal,batch-normal,resumable-low,batch-low PreemptMode=requeue GraceTime=120 MaxWall=-1 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=52 Flags=DenyOnLimit
give interactive-high Priority=12 PreemptMode=cluster GraceTime=0 MaxWall=01:00:00 MaxTRES=gres/gpu=-1 GrpTRES=gres/gpu=52 Flags=DenyOnLimit
for name in interactive-high background-high interactive-normal background-normal interactive-low batch-low background-low; do
  old=$(sacctmgr -nP show qos where name="$name" format=preempt)
  [ -z "$old" ] || sacctmgr -i modify qos where name="$name" set Preempt-="$old"
done

# Everybody may use these, by default the first.
sacctmgr -i modify cluster where name="$cluster" \
  set defaultqos=training-normal qos=training-normal,interactive-normal,resumable-normal,batch-normal,background-normal,interactive-low,resumable-low,training-low,batch-low,background-low
# The high level is given by name; where all is at the top, nothing is:
# sacctmgr -i modify account where name=ACCOUNT set qos+=interactive-high,resumable-high,training-high,batch-high,background-high
