"""The usual asks are those that came, counted in classes, and soon forgotten when they stop."""

import pytest

from gpuguard.scheduler.mix import CLASSES, MOST, PERIOD, SCALE, Mix, bucket
from gpuguard.scheduler.scoring import Want


def _told(mix: Mix, *wants: Want) -> int:
    return sum(mix.observe(want) for want in wants)


@pytest.mark.parametrize(("amount", "same"), [(8, 8), (8, 9), (12000, 12200), (65536, 81919)])
def test_amounts_within_a_quarter_of_a_power_of_two_are_one_bucket(amount: int, same: int) -> None:
    assert bucket(amount) == bucket(same)


def test_buckets_grow_with_amounts() -> None:
    buckets = [bucket(amount) for amount in (0, 1, 2, 4, 5, 8, 10, 12, 14, 16, 1000, 4000, 1 << 60)]
    assert buckets == sorted(set(buckets))


def test_the_first_ask_is_the_first_list() -> None:
    mix = Mix()
    assert mix.observe(Want(gpus=2, cpus=4000, memory=100))
    ((want, weight),) = mix.typical
    assert (want, weight) == (Want(gpus=2, cpus=4000, memory=100), SCALE)


def test_a_class_is_its_mean_ask() -> None:
    mix = Mix()
    _told(mix, Want(gpus=1, cpus=12000), Want(gpus=1, cpus=12200))
    assert mix.typical[0].want.cpus == 12000, "the list stands as long as weights do not change"
    _told(mix, Want(gpus=8), Want(gpus=8))
    assert {entry.want.cpus for entry in mix.typical} == {12100, 0}


def test_work_for_cpus_is_no_class() -> None:
    mix = Mix()
    _told(mix, Want(cpus=1000), Want(cpus=1000), Want(cpus=2000), Want(cpus=1000))
    assert mix.typical == ()


def test_rare_asks_do_not_count() -> None:
    mix = Mix()
    _told(mix, Want(gpus=8), *[Want(gpus=1)] * 127)
    assert [entry.want.gpus for entry in mix.typical] == [1]


def test_the_list_is_bounded() -> None:
    mix = Mix()
    _told(mix, *[Want(milli=milli) for milli in range(1, 513)])
    assert len(mix.typical) == MOST


def test_the_same_mix_makes_no_new_list() -> None:
    mix = Mix()
    _told(mix, *[Want(gpus=1), Want(milli=500)] * 512)
    version = mix.version
    assert _told(mix, *[Want(gpus=1), Want(milli=500)] * PERIOD) == 0
    assert mix.version == version


def test_what_stops_coming_is_forgotten() -> None:
    mix = Mix()
    _told(mix, *[Want(gpus=8)] * PERIOD)
    _told(mix, *[Want(gpus=1)] * (12 * PERIOD))
    assert [entry.want.gpus for entry in mix.typical] == [1]


def test_classes_are_bounded() -> None:
    mix = Mix()
    for want in (Want(milli=1 + number % 999, kinds=1 << number // 999) for number in range(4 * CLASSES)):
        mix.observe(want)
    assert len(mix._counts) <= CLASSES + PERIOD


def test_equal_asks_make_equal_lists_in_any_order() -> None:
    wants = [Want(gpus=1), Want(milli=300), Want(milli=300), Want(gpus=4, cpus=9)]
    first, second = Mix(), Mix()
    _told(first, *wants)
    _told(second, *reversed(wants))
    assert first.typical == second.typical
