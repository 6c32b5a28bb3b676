"""What of the memory goes to disk."""

import msgspec

from gpuguard.health.state import Health, difference, restore
from gpuguard.model.ids import BootId
from tests.support.core import instant


def test_a_new_boot_is_written_though_nothing_else_changed() -> None:
    before = Health(now=instant(1.0))
    rebooted = msgspec.structs.replace(before, now=msgspec.structs.replace(before.now, boot=BootId("b" * 32)))
    puts, deletes = difference(before, rebooted)
    assert restore(puts, (), before.now).boot == rebooted.boot != before.boot
    assert deletes == ()


def test_time_alone_is_not_worth_a_write() -> None:
    assert difference(Health(now=instant(1.0)), Health(now=instant(2.0))) == ({}, ())
