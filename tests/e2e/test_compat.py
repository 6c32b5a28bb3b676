"""The page in DCGM's names, scraped by a real Prometheus and asked what dashboard 12239 asks."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.runtime.http import MetricsServer, printed
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.prometheus

PAGE = Path(__file__).resolve().parents[1] / "golden" / "compat_dcgm_h100x8.prom"
WHERE = '{instance=~".+", gpu=~"0|1|2|3|4|5|6|7"}'
# The panels of the dashboard, with how many series each has on eight GPUs; then alerts as they are commonly written.
EXPRESSIONS = {
    f"DCGM_FI_DEV_GPU_TEMP{WHERE}": 8,
    f"avg(DCGM_FI_DEV_GPU_TEMP{WHERE})": 1,
    f"DCGM_FI_DEV_POWER_USAGE{WHERE}": 8,
    f"sum(DCGM_FI_DEV_POWER_USAGE{WHERE})": 1,
    f"DCGM_FI_DEV_SM_CLOCK{WHERE} * 1000000": 8,
    f"DCGM_FI_DEV_GPU_UTIL{WHERE}": 8,
    f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{WHERE}": 8,
    f"DCGM_FI_DEV_FB_USED{WHERE}": 8,
    "count by (Hostname, modelName, UUID) (DCGM_FI_DEV_XID_ERRORS == 0)": 8,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE + DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS == 0": 8,
    "rate(DCGM_FI_DEV_POWER_VIOLATION[1m]) >= 0": 8,
    "DCGM_FI_DEV_XID_ERRORS > 0": 0,
}
SCRAPED_WITHIN = 20.0


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = MetricsServer(("127.0.0.1", 0), {"/metrics": printed(PAGE.read_text)})
    server.start()
    try:
        with Prometheus(tmp_path_factory.mktemp("compat"), ["{}:{}".format(*server.address)], []) as running:
            ends = time.monotonic() + SCRAPED_WITHIN
            while not running.query("count_over_time(DCGM_FI_DEV_POWER_VIOLATION[1m]) >= 2"):
                assert time.monotonic() < ends
                time.sleep(0.2)
            yield running
    finally:
        server.stop()


@pytest.mark.parametrize(("expression", "series"), EXPRESSIONS.items(), ids=lambda value: str(value)[:60])
def test_what_was_written_for_dcgm_exporter_has_data(prometheus: Prometheus, expression: str, series: int) -> None:
    assert len(prometheus.query(expression)) == series


def test_prometheus_took_every_line(prometheus: Prometheus) -> None:
    lines = [line for line in PAGE.read_text().splitlines() if not line.startswith("#")]
    (scraped,) = prometheus.query("scrape_samples_scraped")
    assert int(scraped["value"][1]) == len(lines)
