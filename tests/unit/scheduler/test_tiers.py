"""Who goes before whom, and who may take whose place."""

import msgspec
import pytest

from gpuguard.scheduler.settings import Preemption, Settings, TierRule
from gpuguard.scheduler.tiers import Band, bands, high_caps, own_pools


def _by_name(settings: Settings) -> dict[str, Band]:
    return {band.name: band for band in bands(settings)}


def test_formal_training_is_nobodys_victim() -> None:
    every = bands(Settings())
    assert not [band.name for band in every if any(name.startswith("training-") for name in band.takes)]
    assert [band.name for band in every if "resumable-normal" in band.takes] == [
        "resumable-high", "training-high", "batch-high",
    ]  # fmt: skip


def test_nobody_takes_from_an_equal_or_from_above() -> None:
    every = _by_name(Settings())
    assert all(every[name].rank > band.rank for band in every.values() for name in band.takes)
    assert every["training-normal"].rank == every["resumable-normal"].rank


def test_within_a_level_batch_yields_to_training_and_the_level_decides_first() -> None:
    every = _by_name(Settings())
    assert every["training-normal"].takes == ("batch-normal", "resumable-low", "batch-low")
    assert every["batch-high"].rank < every["training-normal"].rank


@pytest.mark.parametrize("tier", ["interactive", "background"])
def test_who_lives_in_what_is_free_takes_nothing(tier: str) -> None:
    settings = Settings(pools={}, tiers={**Settings().tiers, "interactive": TierRule(session=3600)})
    assert not [band.name for band in bands(settings) if band.tier == tier and (band.takes or band.victim)]


def test_without_preemption_nobody_takes() -> None:
    assert not any(band.takes for band in bands(Settings(preemption=Preemption(enabled=False))))


@pytest.mark.parametrize("gpus", [0, 4, 8, 12, 1040, 10_241])
def test_the_caps_together_are_the_share_of_the_high_level(gpus: int) -> None:
    caps = high_caps(Settings(), gpus)
    assert set(caps) == {"interactive-high", "training-high", "resumable-high", "batch-high"}
    assert sum(caps.values()) == gpus // 5
    assert max(caps.values()) - min(caps.values()) <= 1
    assert caps["training-high"] == max(caps.values())


def test_pools_that_are_no_queue() -> None:
    assert own_pools(Settings()) == {"interactive": 3600}
    tiers = {**Settings().tiers, "batch": TierRule(pool="interactive", order=2)}
    assert own_pools(Settings(tiers=tiers)) == {"interactive": None}
    assert own_pools(msgspec.structs.replace(Settings(), tiers={"training": TierRule()})) == {}
