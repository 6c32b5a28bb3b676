"""What ranks' NCCL flight recorders wrote down: which collective each is in, and which it waits for.

Reads     the file `<prefix><rank>` that PyTorch writes when a collective times out or when it is told to, of each rank
          that others know of; through /proc/<pid>/root first, as a rank may have a /tmp of its own
Emits     a Sweep with a row of each rank that has a dump, and the node's count of those that were refused
Cursor    none: it looks at what is there
Source    PyTorch torch/csrc/distributed/c10d/FlightRecorder.cpp, DebugInfoWriter: TORCH_FR_DUMP_TEMP_FILE, before that
          TORCH_NCCL_DEBUG_INFO_TEMP_FILE; by default /tmp/nccl_trace_rank_ and in newer versions
          ~/.cache/torch/comm_lib_trace_rank_

Only a regular file is read that belongs to the rank's user, was written since its process began, and did not change
between two looks. It is read by `child`, a process with a deadline and limits: `pickled` obeys the few instructions of
a pickle that make plain values, `dump` understands those, and neither imports what the file names.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.sources.flight_recorder.source import QUANTITIES, FlightRecorder, Settings, build

__all__ = ["QUANTITIES", "FlightRecorder", "Settings", "build"]


def __getattr__(name: str) -> object:
    """The source, once it is asked for: the child imports this package too, and must stay small."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpuguard.sources.flight_recorder import source

    return getattr(source, name)
