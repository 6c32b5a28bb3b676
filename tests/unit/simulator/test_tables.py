"""Tables for people: what stands where, and never wider than a terminal."""

from gpuguard.simulator.summary import summary
from gpuguard.simulator.tables import table
from tests.support.courses import small

RUN = summary(small(), cycles_ms=[1.0, 2.0, 3.0], wall_s=1.25, peak_rss_mib=99.9)

TWO = """\
                                      easy-pack        gpuguard
jobs                                          4      12,345,678
  finished                                    3               3
wait, minutes
  mean                                      0.1             0.1
  median                                    0.2             0.2
  95th percentile                           0.2             0.2
  longest                                   0.2             0.2
wait of 1 to 8 GPUs, minutes
  mean                                      0.2             0.2
  median                                    0.2             0.2
  95th percentile                           0.2             0.2
  longest                                   0.2             0.2
GPUs in use while jobs come, %             76.5               -
makespan, days                              0.0             0.0
jobs queued, % of all present              43.8            43.8
jobs preempted, %                          33.3            33.3
jobs that would start at once
  of 8 GPUs                                 0.8             0.8
  of 16 GPUs                                0.0             0.0
  of 32 GPUs                                0.0             0.0
  of 64 GPUs                                0.0             0.0
  of 128 GPUs                               0.0             0.0
cycles of the core                            3               3
  median, ms                                2.0             2.0
  99th percentile, ms                       3.0             3.0
  longest, ms                               3.0             3.0
this run took, seconds                      1.2             1.2
  and memory, MiB                          99.9            99.9
"""


def test_two_runs_side_by_side() -> None:
    assert table({"easy-pack": RUN, "gpuguard": {**RUN, "jobs": 12345678, "utilisation": None}}) == TWO


def test_the_policies_that_ship_fit_in_one_table_and_a_sixth_does_not() -> None:
    names = ["fifo-spread", "fifo-pack", "easy-pack", "easy-spread", "gpuguard"]
    text = table(dict.fromkeys(names, RUN))
    heads = text.splitlines()[:2]
    assert heads[0].split() == ["fifo-", "fifo-", "easy-", "easy-"]
    assert heads[1].split() == ["spread", "pack", "pack", "spread", "gpuguard"]
    six = table(dict.fromkeys([*names, "averyveryverylongname"], RUN))
    assert six.startswith(text + "\n")
    assert "averyveryveryl~\n" in six
    for line in six.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_no_runs_no_table() -> None:
    assert table({}) == ""
