"""Lost, reset required, no answer: three different things."""

import pytest

from gpuguard.detectors.gpu_lost import GpuLost, Settings
from tests.support.looks import Looks

ALL = {"nvml_lost", "nvml_unlisted", "nvml_reset_required", "nvml_no_answer"}


def look() -> Looks:
    return Looks(GpuLost(Settings()))


def standing(looks: Looks, mono: float, **values: object) -> set[str]:
    return {code for code, stands in looks.stands(mono, **values).items() if stands}


def test_lost_is_told_at_once_and_is_not_self_evident() -> None:
    finding = look()(1.0, gpu_up=0, nvml_error=15)["nvml_lost"]
    assert (finding.stands, finding.severity, finding.self_evident) == (True, "critical", False)
    assert (finding.remedy, finding.ladder, finding.latched) == ("reboot", ("reboot", "replace"), False)
    assert finding.clears == ("reboot", "replace", "ack")


def test_a_loss_is_for_good_when_it_lasts_longer_than_a_reset() -> None:
    looks = look()
    lost = [looks(mono, gpu_up=0, nvml_error=15)["nvml_lost"] for mono in (1.0, 30.9, 31.0)]
    assert [finding.latched for finding in lost] == [False, False, True]
    looks(40.0, gpu_up=1, nvml_error=0)
    assert not looks(41.0, gpu_up=0, nvml_error=15)["nvml_lost"].latched


@pytest.mark.parametrize("code", [28, 999])
def test_a_lost_gpu_is_not_back_because_it_is_listed_no_more_or_gives_another_error(code: int) -> None:
    looks = look()
    looks(1.0, gpu_up=0, nvml_error=15)
    assert "nvml_lost" not in looks(10.0, gpu_up=0, nvml_error=code)
    assert looks(31.0, gpu_up=0, nvml_error=15)["nvml_lost"].latched


def test_a_reset_required_needs_a_witness() -> None:
    finding = look()(1.0, gpu_up=0, nvml_error=16)["nvml_reset_required"]
    assert (finding.severity, finding.advice, finding.self_evident) == ("critical", "drain", False)
    assert finding.ladder == ("reset", "reboot", "replace")


def test_a_reset_required_is_over_when_the_gpu_answers() -> None:
    looks = look()
    assert standing(looks, 1.0, gpu_up=0, nvml_error=16) == {"nvml_reset_required"}
    after = looks(2.0, gpu_up=1, nvml_error=0)["nvml_reset_required"]
    assert (after.stands, after.remedy, after.latched) == (False, "reset", False)


def test_a_gpu_that_answers_is_neither_whatever_code_is_left() -> None:
    assert standing(look(), 1.0, gpu_up=1, nvml_error=15) == set()
    assert set(look()(1.0, gpu_up=1)) == ALL


def test_one_that_is_listed_no_more_is_told_at_once_and_grave_when_it_lasts() -> None:
    looks = look()
    told = [looks(mono, gpu_up=0, nvml_error=28)["nvml_unlisted"] for mono in (1.0, 30.9, 31.0)]
    assert [(f.stands, f.severity, f.self_evident) for f in told] == [
        (True, "degraded", False), (True, "degraded", False), (True, "critical", False),
    ]  # fmt: skip
    assert standing(looks, 40.0, gpu_up=1, nvml_error=0) == set()
    assert looks(41.0, gpu_up=0, nvml_error=28)["nvml_unlisted"].severity == "degraded"


def test_no_answer_is_told_when_it_lasts_and_makes_unknown() -> None:
    looks = look()
    assert standing(looks, 1.0, gpu_up=0, nvml_error=999) == set()
    assert standing(looks, 30.9, gpu_up=0, nvml_error=999) == set()
    assert standing(looks, 31.0, gpu_up=0, nvml_error=10) == {"nvml_no_answer"}
    finding = looks(32.0, gpu_up=0, nvml_error=999)["nvml_no_answer"]
    assert (finding.silent, finding.severity) == (True, "degraded")


def test_one_good_look_begins_the_hold_anew() -> None:
    looks = look()
    looks(1.0, gpu_up=0, nvml_error=999)
    looks(20.0, gpu_up=1, nvml_error=0)
    assert standing(looks, 40.0, gpu_up=0, nvml_error=999) == set()


def test_a_lost_gpu_is_not_told_a_second_time_as_one_without_an_answer() -> None:
    looks = look()
    looks(1.0, gpu_up=0, nvml_error=15)
    assert standing(looks, 100.0, gpu_up=0, nvml_error=15) == {"nvml_lost"}


@pytest.mark.parametrize("unknown", [{}, {"gpu_up": 0}, {"gpu_up": None, "nvml_error": None}, {"nvml_error": "lost"}])
def test_what_is_not_known_is_not_judged(unknown: dict[str, object]) -> None:
    assert look()(1.0, **unknown) == {}  # type: ignore[arg-type]  # no boot among them
