"""The form in which a job tells its progress; read by the agent, and easily written in any language.

A message is one datagram to a Unix socket: a JSON object of at most 512 bytes with the whole state of one rank, so that
the newest one says all and those before it may be lost. Who sent it the kernel says; what it says of pids and users is
for people. Only `v` and `rank` must be there.

    v         1
    n         a number that grows with every message of this process; an older one is not believed
    job       what the job is called, where its keeper cannot be asked: slurm/8123, or a word
    rank      number of the rank; `world` of how many, `restart` after how many starts before
    host, pid where it runs, as it sees itself
    step      the newest step; `phase` what it does; `since` when that phase began
    at        when it last got on: a step, a phase that began or ended, a word of life
    saved     step of the last complete checkpoint, `saved_at` when it was complete, `blocked` how many seconds the save
              held up the loop, `holds` what it holds, of "model optimizer loader seeds"
    loss      a number, or "nan"
    done      true once the work is complete
    preempt   0 nothing known; 1 it will save and end when told to (SIGTERM); 2 it was told; 3 it saved
    devices   its CUDA_VISIBLE_DEVICES; `flight` where its NCCL flight recorder writes, less the number of the rank
    via       how it is known: library, datagram

Times are seconds of CLOCK_MONOTONIC, which is the same for every process of a machine. With a message a file descriptor
may come: a memfd, sealed against growing and shrinking, that holds a page. There the newest state stands without
another message: what changes most, as PAGE has it. It is read until two reads agree.
"""

import struct

VERSION = 1
# Where the agent listens, unless the environment names another place.
SOCKET = "/run/gpuguard/progress.sock"
SOCKET_VARIABLE = "GPUGUARD_SOCKET"
MESSAGE_LIMIT = 512
PHASE_LIMIT = 24  # bytes of a phase's name in a page

# n, at, step, phase, since, loss, saved, saved_at, flags, preempt; a step or save that is none yet is NONE.
PAGE = struct.Struct("<8sQdq24sddqdII")
PAGE_MAGIC = b"ggpage1\0"
PAGE_SIZE = 4096
NONE = -(2**63)
FLAG_DONE = 1  # the work is complete
FLAG_LOSS = 2  # the loss is one; without it none was told

# Phases with a meaning; any other word is a phase as well.
START, STEP, CHECKPOINT, EVALUATION, COMPILE = "start", "step", "checkpoint", "evaluation", "compile"
PARTS = ("model", "optimizer", "loader", "seeds")  # of a complete checkpoint
