"""The shared columns: what each cell becomes, and how every kind of bad file is told."""

from collections.abc import Mapping

import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.runtime.trace_files import trace_lines
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Dependency, Job, Wish
from gpuguard.simulator.trace import Trace, TraceJob
from gpuguard.simulator.traces.shared_columns import gpu_types, jobs, nodes, with_gpu_types
from tests.support.shared_data import shared

HEADER = "job_id,submit_s,duration_s,gpus,gpu_type,cpus,mem,user,queue,status,qos,gpu_milli"


def _read(*rows: str, header: str = HEADER) -> Trace:
    return jobs([f"{line}\n" for line in (header, *rows)], "t.csv")


def _one(cells: Mapping[str, str]) -> TraceJob:
    given = {"job_id": "a", "submit_s": "0", "duration_s": "60", "gpus": "1", **cells}
    (only,) = _read(",".join(given.values()), header=",".join(given)).jobs
    return only


def _mistakes(*rows: str, header: str = HEADER) -> tuple[str, ...]:
    with pytest.raises(ConfigInvalid) as told:
        _read(*rows, header=header)
    return told.value.mistakes


def test_a_full_row() -> None:
    (traced,) = _read("a,5,60,2,V100|T4,11.908,16384,ann,6214e9,fail,LS,1000").jobs
    assert traced == TraceJob(
        job=Job(id="a", user="ann", qos="LS", gpus=2, gpu_types=("V100", "T4"), cpus=11.908, memory=16384.0),
        submit_s=5, duration_s=60, status="fail", queue="6214e9",
    )  # fmt: skip


def test_empty_cells_are_the_defaults_and_an_empty_run_time_never_started() -> None:
    (traced,) = _read("a,5,,1,,,,,,,,").jobs
    assert traced == TraceJob(job=Job(id="a"), submit_s=5, duration_s=None)


def test_what_spreadsheets_leave_is_read_over() -> None:
    trace = _read("job_id,submit_s,duration_s,gpus", "", "a,0,60,1", ",,,", "", "b,0,60,1", ",,,", header="")
    assert [traced.job.id for traced in trace.jobs] == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("JOB_ID,submit_s,duration_s,gpus", "line 1, column job_id: it is written 'JOB_ID'; write it job_id"),
        ("job_id;submit_s;duration_s;gpus", "line 1, column 1: the cells stand apart by semicolons; save the file"),
        ("job_id\tsubmit_s\tduration_s\tgpus", "line 1, column 1: the cells stand apart by tabs; save the file"),
        ("job_id,submit_s,duration_s,gpus\ra,0,60,1", "line 1, column 1: the lines end in a carriage return alone"),
    ],
)
def test_a_spreadsheets_own_ways_are_told_once(header: str, says: str) -> None:
    (mistake,) = _mistakes(header=header)
    assert says in mistake


def test_four_columns_are_enough_and_order_is_free() -> None:
    (traced,) = _read("8, a ,9,1", header="gpus,job_id,duration_s,submit_s").jobs
    assert traced == TraceJob(job=Job(id="a", gpus=8), submit_s=1, duration_s=9)


@pytest.mark.parametrize(
    ("cells", "tier", "milli"),
    [
        ({"gpu_milli": "1000"}, "training", 1000),
        ({"gpu_milli": "460"}, "batch", 460),
        ({"gpus": "0", "gpu_milli": "0"}, "batch", 1000),
        ({"gpu_milli": "460", "tier": "interactive"}, "interactive", 460),
        ({"gpus": "0", "tier": "background"}, "background", 1000),
    ],
)
def test_the_tier_follows_the_share_unless_it_is_told(cells: Mapping[str, str], tier: str, milli: int) -> None:
    job = _one(cells).job
    assert (job.tier, job.gpu_milli) == (tier, milli)


def test_the_other_fields_of_a_job_go_by_their_names() -> None:
    job = _one({
        "account": "lab", "tier": "training", "level": "high", "nodes": "2", "gpu_memory": "20480", "per": "gpu",
        "walltime": "7200", "checkpoints": "yes", "preemptible": "False", "least_gpus": "4", "exclusive": "1",
        "requeues": "0", "within": "pod", "required": "true", "wait": "300", "pool": "training", "gpus": "8",
    }).job  # fmt: skip
    assert job == Job(
        id="a", account="lab", level="high", gpus=8, nodes=2, gpu_memory=20480, per="gpu", walltime=7200,
        checkpoints=True, preemptible=False, least_gpus=4, exclusive=True, requeues=0, pool="training",
        wish=Wish(within="pod", required=True, wait=300),
    )  # fmt: skip


def test_what_comes_first() -> None:
    trace = _read(
        "a,0,1,1,", "b,0,1,1,afterok:a; condition:model;singleton", header="job_id,submit_s,duration_s,gpus,after"
    )
    assert trace.jobs[1].job.after == (
        Dependency(relation="afterok", name="a"),
        Dependency(relation="condition", name="model"),
        Dependency(relation="singleton", name=""),
    )


def test_only_queues_of_the_scheduler_are_submitted_to() -> None:
    known, other = _one({"queue": "trial"}), _one({"queue": "6214e9"})
    assert (known.job.queue, known.queue) == ("trial", "trial")
    assert (other.job.queue, other.queue) == ("training", "6214e9")


def test_numbers_as_spreadsheets_write_them() -> None:
    traced = _one({"submit_s": "1e3", "duration_s": "59.6", "gpus": "8.0"})
    assert (traced.submit_s, traced.duration_s, traced.job.gpus) == (1000, 60, 8)


def test_unknown_columns_are_told_and_left_alone() -> None:
    trace = _read("a,0,1,1,?", header="job_id,submit_s,duration_s,gpus,colour")
    assert trace.unread == ("colour",)
    assert trace.jobs[0].job == Job(id="a")


@pytest.mark.parametrize(
    ("cells", "column", "said"),
    [
        ({"submit_s": "-5"}, "submit_s", "negative"),
        ({"duration_s": "-1"}, "duration_s", "negative"),
        ({"submit_s": ""}, "submit_s", "empty"),
        ({"submit_s": "soon"}, "submit_s", "not a number"),
        ({"submit_s": "nan"}, "submit_s", "not a number"),
        ({"duration_s": "inf"}, "duration_s", "not a number"),
        ({"duration_s": "1e999"}, "duration_s", "beyond"),
        ({"duration_s": "9" * 30}, "duration_s", "beyond"),
        ({"duration_s": "9" * 5000}, "duration_s", "not a number"),
        ({"duration_s": "1_000"}, "duration_s", "not a number"),
        ({"duration_s": "١٢"}, "duration_s", "not a number"),
        ({"gpus": ""}, "gpus", "empty"),
        ({"gpus": "1.5"}, "gpus", "not whole"),
        ({"gpus": "99999999999"}, "gpus", "beyond"),
        ({"gpu_milli": "0"}, "gpu_milli", "none"),
        ({"gpu_milli": "1001"}, "gpu_milli", "more than a whole GPU"),
        ({"gpus": "2", "gpu_milli": "500"}, "gpu_milli", "a share is of one GPU"),
        ({"cpus": "four"}, "cpus", "not a number"),
        ({"status": "done"}, "status", "pass, fail"),
        ({"tier": "gold"}, "tier", "interactive, training"),
        ({"checkpoints": "maybe"}, "checkpoints", "true or false"),
        ({"walltime": "0"}, "walltime", "no time"),
        ({"nodes": "0"}, "nodes", "too few"),
        ({"after": "afterok"}, "after", "afterok:ID"),
        ({"after": "afterok:nobody"}, "after", "no job 'nobody'"),
        ({"job_id": ""}, "job_id", "empty"),
        ({"job_id": "a\x1b[2J"}, "job_id", "cannot be printed"),
        ({"job_id": "x" * 201}, "job_id", "201 characters"),
    ],
)
def test_a_bad_cell_is_named(cells: Mapping[str, str], column: str, said: str) -> None:
    with pytest.raises(ConfigInvalid) as told:
        _one(cells)
    mistake = told.value.mistakes[0]
    assert mistake.startswith(f"t.csv line 2, column {column}: ")
    assert said in mistake
    assert mistake.isascii()
    assert mistake.isprintable()
    assert len(mistake) < 200


@pytest.mark.parametrize("gone", ["job_id", "submit_s", "duration_s", "gpus"])
def test_a_missing_column_is_named(gone: str) -> None:
    header = ",".join(name for name in HEADER.split(",") if name != gone)
    (mistake,) = _mistakes("a,0,60,1,,,,,,,", header=header)
    assert mistake.startswith(f"t.csv line 1, column {gone}: it is missing; add it")


def test_an_id_twice_names_both_lines() -> None:
    assert _mistakes("a,0,1,1,,,,,,,,", "b,0,1,1,,,,,,,,", "a,0,1,1,,,,,,,,") == (
        "t.csv line 4, column job_id: 'a' is also in line 2; give each row a name of its own",
    )


def test_a_row_of_another_length_names_the_cell() -> None:
    short, long = _mistakes("a,0,1", "b,0,1,1,,,,,,,,,9")
    assert short.startswith("t.csv line 2, column gpus: the row has 3 cells of 12; is the file cut short")
    assert long.startswith("t.csv line 3, column 13 (beyond the header): the row has 13 cells")


def test_a_quote_without_its_pair_ends_the_reading() -> None:
    (mistake,) = _mistakes('a,0,1,1,"T4,,,,,,,', "b,0,1,1,,,,,,,,")
    assert mistake.startswith("t.csv line 3, column ?: ")
    assert "quotes in pairs" in mistake


def test_a_column_twice_and_a_file_without_anything() -> None:
    assert "column gpus: it stands more than once" in _mistakes(header=HEADER + ",gpus")[0]
    assert "has no jobs" in _mistakes()[0]
    with pytest.raises(ConfigInvalid, match="line 1, column job_id: the file has no header"):
        jobs([], "t.csv")


def test_all_mistakes_are_told_up_to_ten() -> None:
    two = _mistakes("a,-1,1,x,,,,,,,,")
    assert [mistake.split(":")[0] for mistake in two] == ["t.csv line 2, column submit_s", "t.csv line 2, column gpus"]
    many = _mistakes(*(f"{at},-1,1,1,,,,,,,," for at in range(1000)))
    assert len(many) == 11
    assert "line 11," in many[9]
    assert "the rest was not read" in many[10]


def test_nodes() -> None:
    found = nodes(
        ["node_id,gpus,gpu_type,cpus,mem,rack,pod\n", "n1,8,T4,96.0,1024,r0,p0\n", "\n", "n2,0,,,,,\n"], "n.csv"
    )
    assert found == (
        NodeJoined(at=0, node="n1", gpus=8, gpu_type="T4", cpus=96.0, memory=1024.0, rack="r0", pod="p0"),
        NodeJoined(at=0, node="n2", gpus=0),
    )


def test_a_node_has_64_gpus_at_most() -> None:
    header = "node_id,gpus,gpu_type,cpus,mem\n"
    assert nodes([header, "n,64,,,\n"], "n.csv")[0].gpus == 64
    with pytest.raises(ConfigInvalid, match=r"n\.csv line 3, column gpus: 65 is more than one node holds"):
        nodes([header, "n,64,,,\n", "m,65,,,\n"], "n.csv")
    with pytest.raises(ConfigInvalid, match="column node_id: 'n' is also in line 2"):
        nodes([header, "n,64,,,\n", "n,1,,,\n"], "n.csv")
    with pytest.raises(ConfigInvalid, match="column cpus: it is missing"):
        nodes(["node_id,gpus,gpu_type,mem\n", "n,64,,\n"], "n.csv")


def test_gpu_types_of_another_file() -> None:
    trace = _read("a,0,1,1,,,,,,,,", "b,0,1,1,P100,,,,,,,")
    types = gpu_types(["job_id,gpu_type\n", "a,V100M16|V100M32\n", "z,T4\n"], "g.csv")
    constrained, strangers = with_gpu_types(trace, types)
    assert [traced.job.gpu_types for traced in constrained.jobs] == [("V100M16", "V100M32"), ("P100",)]
    assert strangers == 1


def test_the_shared_traces_are_read_whole() -> None:
    openb = jobs(trace_lines(shared("traces", "openb_jobs.csv.gz")), "openb")
    assert len(openb.jobs) == 8152
    assert sum(traced.duration_s is None for traced in openb.jobs) == 897
    assert sum(traced.job.shares for traced in openb.jobs) == 3078
    assert sum(traced.job.gpus == 0 for traced in openb.jobs) == 1088
    machines = nodes(trace_lines(shared("traces", "openb_nodes.csv.gz")), "nodes")
    assert (len(machines), sum(node.gpus for node in machines)) == (1523, 6212)
    types = gpu_types(trace_lines(shared("traces", "openb_gpuspec33.csv.gz")), "types")
    assert with_gpu_types(openb, types)[1] == 0
