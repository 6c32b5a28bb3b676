"""Xids are counted and dated by GPU and number."""

import msgspec

from gpuguard.metrics.xids import families
from gpuguard.model.health import Snapshot, XidSeen
from gpuguard.model.ids import PciAddress
from tests.support.snapshots import full

UUID = full().subjects[0].uuid
HERE = PciAddress("0000:4e:00.0")


def seen(pci: PciAddress | None, xid: int, count: int = 1, last_utc: float | None = 1.7e9) -> XidSeen:
    return XidSeen(pci=pci, xid=xid, count=count, last_utc=last_utc)


def shown(*xids: XidSeen) -> dict[str, list[tuple[dict[str, str], float]]]:
    snapshot: Snapshot = msgspec.structs.replace(full(), shell=msgspec.structs.replace(full().shell, xids=xids))
    return {family.name: [(dict(s.labels), s.value) for s in family.samples] for family in families(snapshot)}


def test_count_and_date_of_each() -> None:
    page = shown(seen(HERE, 79), seen(HERE, 43, count=5, last_utc=1.6e9))
    assert page == {
        "gpuguard_xid_errors": [
            ({"gpu": "5", "uuid": UUID, "xid": "79"}, 1),
            ({"gpu": "5", "uuid": UUID, "xid": "43"}, 5),
        ],
        "gpuguard_xid_last_timestamp_seconds": [
            ({"gpu": "5", "uuid": UUID, "xid": "79"}, 1.7e9),
            ({"gpu": "5", "uuid": UUID, "xid": "43"}, 1.6e9),
        ],
    }


def test_two_gpus_of_which_only_the_address_is_known_are_told_apart() -> None:
    page = shown(seen(PciAddress("0000:01:00.0"), 48), seen(PciAddress("0000:02:00.0"), 48))
    labels = [labels["gpu"] for labels, _ in page["gpuguard_xid_errors"]]
    assert labels == ["0000:01:00.0", "0000:02:00.0"]


def test_an_xid_of_no_gpu_and_one_without_a_date() -> None:
    page = shown(seen(None, 62, last_utc=None))
    assert page == {"gpuguard_xid_errors": [({"gpu": "", "uuid": "", "xid": "62"}, 1)]}


def test_without_xids_there_is_no_family() -> None:
    assert shown() == {}
