#!/bin/sh
# Slurm Epilog: may this node run another job after this one?
#
# 1 only for a confirmed CRITICAL. A warning, an unknown, a time-out, a crash or a missing gpuguard is 0 here:
# Slurm drains the node on any other exit code, and a broken hook must not drain a cluster. No Slurm command is called:
# in an epilog it can block.
gpuguard=${GPUGUARD:-/usr/bin/gpuguard}
limit=${GPUGUARD_LIMIT:-5} # seconds; the answer comes from the agent's cache within 50 ms
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH # slurmd gives us none

[ -x "$gpuguard" ] || exit 0
# --foreground would let children outlive the limit; -k ends what ignores the first signal.
timeout -k 1 "$limit" "$gpuguard" check --mode epilog </dev/null
# 2 is CRITICAL. 1 is what a broken Python installation ends with, 124 and 137 mean over the limit, 126 and 127 that
# it could not be run.
[ $? -ne 2 ]
