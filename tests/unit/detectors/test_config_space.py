"""A GPU that answered and no longer does; what never answered cannot be lost."""

from tests.support.stories import told

ONLY = "only=config_space"
PCI = "0000:0f:00.0"


def test_a_gpu_that_reads_as_all_ones_is_silent() -> None:
    _, lines = told(f"1 probe {PCI} answers", f"2 probe {PCI} silent", given=ONLY)
    assert "gpu_silent stands: critical" in lines[-1]
    assert "self-evident" not in lines[-1]


def test_a_gpu_that_the_kernel_no_longer_lists_is_silent() -> None:
    _, lines = told(f"1 probe {PCI} answers", f"2 probe {PCI} gone", given=ONLY)
    assert "no longer listed" in lines[-1]


def test_it_ends_when_the_gpu_answers() -> None:
    _, lines = told(f"1 probe {PCI} answers", f"2 probe {PCI} silent", f"3 probe {PCI} answers", given=ONLY)
    assert lines[-1] == f"gpu:{PCI}: gpu_silent stands no longer"


def test_what_never_answered_is_not_lost() -> None:
    assert told(f"1 probe {PCI} silent", f"2 probe {PCI} gone", given=ONLY)[1] == []


def test_alone_it_drains_nothing() -> None:
    story, lines = told("0 boot A", f"1 probe {PCI} answers", f"2 probe {PCI} silent")
    assert not any("owed" in line for line in lines)
    assert story.health is not None
    assert story.health.drain is None
