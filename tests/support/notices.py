"""Notices as tests want them."""

from typing import Any

import msgspec

from gpuguard.model.ids import BootId, EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.notices import Notice

BOOT = BootId("aaaaaaaa-0000-4000-8000-000000000001")
UTC = 1_750_000_000.0


def notice(**more: Any) -> Notice:
    """A GPU that is lost, with what is told of it otherwise."""
    made = Notice(
        id="0011223344556677", node="n7", event="gpu.failed", urgency="page", subject=SubjectId("gpu:0000:4e:00.0"),
        mark="xid79", code="xid79", title="gpu5 is unfit", text="fell off the bus", next_step="gpuguard why gpu5",
        since=Instant(boot=BOOT, mono=10.0, utc=UTC + 10.0), facts={"serial": "1650000000001"},
        because=(EventId("kmsg:aaaaaaaa:4711"),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


def over(**more: Any) -> Notice:
    """That it is over."""
    return notice(id="8899aabbccddeeff", until=Instant(boot=BOOT, mono=100.0, utc=UTC + 100.0), next_step="", **more)
