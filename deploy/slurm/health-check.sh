#!/bin/sh
# Slurm HealthCheckProgram: prints gpuguard's verdict into slurmd's log, where it is one more witness.
#
# slurmd ignores the exit code and waits for us before it registers, so this ends within the limit and always with 0.
# It does not drain: the agent has done so already, with a reason that says why. slurmd gives it SLURMD_NODENAME and
# nothing else, not even PATH.
gpuguard=${GPUGUARD:-/usr/bin/gpuguard}
limit=${GPUGUARD_LIMIT:-5} # seconds; the answer comes from the agent's cache within 50 ms
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

[ -x "$gpuguard" ] || exit 0
timeout -k 1 "$limit" "$gpuguard" check --mode health </dev/null
exit 0
