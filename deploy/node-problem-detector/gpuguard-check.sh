#!/bin/sh
# node-problem-detector custom plugin: is there a confirmed fault on this node?
#
# Prints one line and ends with NPD's codes: 0 there is none, 1 there is one, 2 nobody knows. Only a confirmed CRITICAL
# is 1. A WARNING is 0: the node may be used. UNKNOWN, a usage error, a crash, a time-out or a missing gpuguard is 2,
# which NPD writes as status Unknown: that there is no answer is neither health nor a fault.
gpuguard=${GPUGUARD:-/usr/bin/gpuguard}
root=${GPUGUARD_CHROOT:-} # in a container: where the host's root is mounted; the host's gpuguard is then asked
limit=${GPUGUARD_LIMIT:-3} # seconds for each question; the answer comes from the agent's cache within 50 ms
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

ask() { timeout -k 1 "$limit" ${root:+chroot "$root"} "$gpuguard" check "$@" </dev/null; }

said=$(ask --format nagios 2>/dev/null)
code=$?
# The first line, without its prefix and without the numbers for Nagios.
line=$(printf '%s\n' "$said" | head -n 1)
line=${line#GPUGUARD }
line=${line% | *}
case $code in
0 | 1)
    printf '%s\n' "$line"
    exit 0
    ;;
2)
    printf '%s\n' "$line"
    # In this mode 2 is a confirmed CRITICAL and nothing else.
    ask --mode prolog >/dev/null 2>&1
    [ $? -eq 2 ] && exit 1
    exit 2
    ;;
3)
    printf '%s\n' "$line"
    exit 2
    ;;
*)
    # 124 and 137 over the limit, 126 and 127 not to be run, 64 and 70 usage and our own crash.
    printf 'gpuguard gave no answer (exit code %s)\n' "$code"
    exit 2
    ;;
esac
