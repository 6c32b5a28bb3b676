"""NVLink's rates from its counters, where nobody else gives them."""

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.sources.nvml.rates import Rates

GPU = SubjectId("gpu:0000:07:00.0")
TX, RX = "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"


def filled(rates: Rates, at: float, tx: int | None, rx: int | None) -> tuple[object, object]:
    row: Values = {"nvlink_tx_bytes_all_total": tx, "nvlink_rx_bytes_all_total": rx}
    rates.fill({GPU: row}, at)
    return row[TX], row[RX]


def test_a_rate_is_what_the_counter_grew_by_over_the_time() -> None:
    rates = Rates()
    assert filled(rates, 100.0, 1000, 0) == (None, None)
    assert filled(rates, 105.0, 6000, 0) == (1000.0, 0.0)


def test_a_counter_that_began_anew_or_was_not_read_or_leaps_gives_none() -> None:
    rates = Rates()
    filled(rates, 100.0, 1000, 1000)
    assert filled(rates, 105.0, 10, None) == (None, None)
    assert filled(rates, 110.0, 60, 5000) == (10.0, None)
    assert filled(rates, 115.0, 2**60, 5000) == (None, 0.0)


def test_who_has_a_rate_keeps_it_and_who_has_no_counter_gets_none() -> None:
    rates = Rates()
    for at in (100.0, 105.0):
        hopper: Values = {"nvlink_tx_bytes_all_total": 7, TX: 9.0}
        l40s: Values = {"power_watts": 70}
        rates.fill({GPU: hopper, SubjectId("gpu:0000:08:00.0"): l40s}, at)
    assert hopper[TX] == 9.0
    assert l40s == {"power_watts": 70}


def test_a_gpu_that_was_away_for_a_look_begins_anew() -> None:
    rates = Rates()
    filled(rates, 100.0, 1000, 1000)
    rates.fill({GPU: {"gpu_up": 0}}, 105.0)
    assert filled(rates, 110.0, 2000, 2000) == (None, None)
