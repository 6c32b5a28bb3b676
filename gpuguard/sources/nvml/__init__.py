"""GPUs as the driver's own library sees them: NVML, asked in a process of its own.

Reads     libnvidia-ml.so.1 through nvidia-ml-py; with a recorded machine as root its nvml.json
Emits     Sweep in three classes, fast, medium and slow, with the rows of all GPUs, GPU instances, processes and of the
          node; LogLine for each Xid that the driver reports as an event
Cursor    none: it looks at the present
Source    nvml.h 13.5; nvidia-ml-py 13.615

`source` runs in the agent and talks to `child` by `protocol`; in the child `reader` turns the answers of a `library`
(`live` or `played`) into rows, by the tables of `readings`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.sources.nvml.source import Nvml, Settings, build

__all__ = ["Nvml", "Settings", "build"]


def __getattr__(name: str) -> object:
    """The source, once it is asked for: the child imports this package too, and must stay small."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpuguard.sources.nvml import source

    return getattr(source, name)
