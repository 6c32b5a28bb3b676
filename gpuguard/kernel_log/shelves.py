"""The index of both shelves, written out because looking into the folders would cost more than many a command.

A test holds it against the folders. Order matters: the first form or grammar that understands wins, so the particular
stand before the general and the kinds that drain before those that do not.
"""

from typing import ClassVar, Protocol

from gpuguard.kernel_log.forms.dmesg import Dmesg
from gpuguard.kernel_log.forms.dmesg_iso import DmesgIso
from gpuguard.kernel_log.forms.dmesg_time import DmesgTime
from gpuguard.kernel_log.forms.fabric_manager import FabricManager
from gpuguard.kernel_log.forms.journal_json import JournalJson
from gpuguard.kernel_log.forms.journal_short import JournalShort
from gpuguard.kernel_log.forms.kmsg import Kmsg
from gpuguard.kernel_log.forms.plain import Plain
from gpuguard.kernel_log.forms.syslog import Syslog
from gpuguard.kernel_log.forms.syslog_5424 import Syslog5424
from gpuguard.kernel_log.forms.syslog_iso import SyslogIso
from gpuguard.kernel_log.forms.talos import Talos
from gpuguard.kernel_log.grammars.aer import Aer
from gpuguard.kernel_log.grammars.crash_dump import CrashDump
from gpuguard.kernel_log.grammars.dpc import Dpc
from gpuguard.kernel_log.grammars.driver_mismatch import DriverMismatch
from gpuguard.kernel_log.grammars.driver_probe_failed import DriverProbeFailed
from gpuguard.kernel_log.grammars.fm_sxid import FmSxid
from gpuguard.kernel_log.grammars.gpu_identity import GpuIdentity
from gpuguard.kernel_log.grammars.gpu_lost import GpuLost
from gpuguard.kernel_log.grammars.gsp import Gsp
from gpuguard.kernel_log.grammars.hung_task import HungTask
from gpuguard.kernel_log.grammars.log_loss import LogLoss
from gpuguard.kernel_log.grammars.nvlink import Nvlink
from gpuguard.kernel_log.grammars.oom import Oom
from gpuguard.kernel_log.grammars.pcie_hotplug import PcieHotplug
from gpuguard.kernel_log.grammars.peermem import Peermem
from gpuguard.kernel_log.grammars.rcu_stall import RcuStall
from gpuguard.kernel_log.grammars.rm_init_failed import RmInitFailed
from gpuguard.kernel_log.grammars.soft_lockup import SoftLockup
from gpuguard.kernel_log.grammars.sxid import Sxid
from gpuguard.kernel_log.grammars.watchdog import Watchdog
from gpuguard.kernel_log.grammars.xid import Xid
from gpuguard.ports import Form, Grammar


class MarkedForm(Form, Protocol):
    """A form; its `markers` stand in lines whose text it prints so that a grammar's own marker cannot be seen."""

    markers: ClassVar[tuple[bytes, ...]]


FORMS: tuple[MarkedForm, ...] = (
    Kmsg(),
    JournalJson(),
    DmesgIso(),
    SyslogIso(),
    JournalShort(),
    Syslog(),
    Syslog5424(),
    FabricManager(),
    DmesgTime(),
    Dmesg(),
    Talos(),
    Plain(),
)

GRAMMARS: tuple[Grammar, ...] = (
    Xid(),
    Sxid(),
    GpuLost(),
    RmInitFailed(),
    Gsp(),
    Nvlink(),
    LogLoss(),
    GpuIdentity(),
    Aer(),
    Dpc(),
    PcieHotplug(),
    HungTask(),
    SoftLockup(),
    RcuStall(),
    Oom(),
    Watchdog(),
    CrashDump(),
    DriverMismatch(),
    DriverProbeFailed(),
    Peermem(),
    FmSxid(),
)


def all_markers() -> tuple[bytes, ...]:
    """Every marker once, less those that hold another one."""
    every = {marker for shelf in (FORMS, GRAMMARS) for row in shelf for marker in row.markers}
    return tuple(sorted(m for m in every if not any(m != other and other in m for other in every)))
