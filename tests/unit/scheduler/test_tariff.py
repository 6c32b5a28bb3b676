"""What a second costs."""

import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.tariff import CARD, Tariff

SITE = Tariff.of(Settings())


@pytest.mark.parametrize(
    ("gpu_type", "weight"),
    [
        ("A10", 1.0), ("A100", 4.0), ("NVIDIA A100-SXM4-80GB", 4.0), ("nvidia a10", 1.0), ("V100M16", 1.0), ("", 1.0),
        ("A1000", 1.0),
    ],
)  # fmt: skip
def test_a_type_weighs_what_its_words_say(gpu_type: str, weight: float) -> None:
    assert SITE.weight(gpu_type) == weight


def test_the_weight_with_the_most_words_counts() -> None:
    tariff = Tariff(weights={"A100": 4.0, "A100 80GB": 5.0})
    assert (tariff.weight("A100-80GB"), tariff.weight("A100-40GB")) == (5.0, 4.0)


def test_cards_are_priced_by_type_and_by_their_part() -> None:
    assert SITE.price(8, 1000, "A100") == 32 * CARD
    assert SITE.price(1, 250, "A10") == CARD // 4
    assert SITE.price(1, 1, "other") == CARD // 1000
    assert SITE.price(2, 1000, "A10", 200_000) == 2 * CARD, "cores beside GPUs are free unless a site asks for them"


def test_work_for_cpus_costs_a_little() -> None:
    assert SITE.price(0, cpus=64_000) == CARD * 64 // 100
    assert SITE.price(0) == 0


def test_cores_that_strand_cards_are_priced_as_those() -> None:
    tariff = Tariff(weights={"A100": 4.0}, cores_per_gpu=16)
    assert tariff.price(1, 1000, "A100", 64_000) == 16 * CARD
    assert tariff.price(8, 1000, "A100", 64_000) == 32 * CARD
    assert tariff.price(0, 1000, "A100", 32_000) == 8 * CARD
    assert tariff.price(0, 1000, "", 32_000, strands=False) == CARD * 32 // 100, "no card is there to be stranded"


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Tariff(weights={"A10": -1.0, "B": float("nan"), "C": 1.0}, core=-1, cores_per_gpu=0)
    assert [line.split(":")[0] for line in caught.value.mistakes] == [
        "gpu_weights.A10", "gpu_weights.B", "core", "cores_per_gpu",
    ]  # fmt: skip


def test_the_weight_with_the_most_words_counts_whatever_the_order_of_names() -> None:
    assert Tariff(weights={"A100 80GB": 6.0, "NVIDIA": 2.0}).weight("NVIDIA A100 80GB") == 6.0
