"""`gpuguard simulate`: what it prints, what it refuses, and that the same question has the same answer."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguard import cli
from gpuguard.commands import simulate
from gpuguard.simulator.policies import policies
from gpuguard.simulator.walltimes import MODES

CHECKOUT = Path(__file__).resolve().parents[3]
TRACES = CHECKOUT / "fixtures" / "traces"
MORNING = ["--jobs", str(TRACES / "morning_jobs.csv"), "--nodes", str(TRACES / "morning_nodes.csv")]
HEAD = "job_id,submit_s,duration_s,gpus\n"
NODE = "node_id,gpus,gpu_type,cpus,mem\nn,8,,,\n"
KEYS = [
    "jobs", "finished", "wait_s", "wait_s_by_gpus", "utilisation", "makespan_s", "fragmentation", "preempted_share",
    "queued_share", "cycles", "wall_s", "peak_rss_mib",
]  # fmt: skip
MEASURED = ("wall_s", "cycles", "peak_rss_mib")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def called(*argv: str) -> tuple[int, str, str]:
        try:
            code = cli.run(["simulate", *argv])
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return called


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def written(jobs: str | bytes, nodes: str = NODE, name: str = "jobs.csv") -> list[str]:
        data = jobs if isinstance(jobs, bytes) else jobs.encode()
        (tmp_path / name).write_bytes(data)
        (tmp_path / "nodes.csv").write_text(nodes)
        return ["--jobs", str(tmp_path / name), "--nodes", str(tmp_path / "nodes.csv")]

    return written


def facts(call: Call, *argv: str) -> Any:
    code, out, _ = call(*argv, "--json")
    assert code == 0
    return json.loads(out)


# --- what is printed -------------------------------------------------------------------------------------------------


def test_the_object_has_the_keys_of_the_contract_first(call: Call) -> None:
    found = facts(call, *MORNING)
    assert list(found)[: len(KEYS)] == KEYS
    assert list(found["wait_s"]) == ["mean", "median", "p95", "max"]
    assert list(found["wait_s_by_gpus"]) == ["1-8", "9+", "64+"]
    assert list(found["fragmentation"]["slots"]) == ["8", "16", "32", "64", "128"]
    assert list(found["cycles"]) == ["count", "p50_ms", "p99_ms", "max_ms"]
    assert (found["policy"], found["jobs"], found["finished"], found["refused"]) == ("gpuguard", 13, 13, 0)
    assert found["peak_rss_mib"] > 1


def test_nothing_but_json_is_on_standard_output(call: Call) -> None:
    code, out, err = call(*MORNING, "--json", "--progress")
    assert code == 0
    assert out.count("\n") == 1
    assert "13 of 13 jobs" in err
    _, _, quiet = call(*MORNING, "--json")
    assert quiet == ""


def test_several_policies_are_a_list_in_their_order(call: Call) -> None:
    found = facts(call, *MORNING, "--policy", "easy-pack", "--policy", "fifo-pack", "--policy", "easy-pack")
    assert [one["policy"] for one in found] == ["easy-pack", "fifo-pack"]
    assert found[0]["wait_s"]["mean"] < found[1]["wait_s"]["mean"]
    assert [one["policy"] for one in facts(call, *MORNING, "--policy", "all")] == list(policies())


def test_the_table_fits_80_columns(call: Call) -> None:
    code, out, err = call(*MORNING, "--policy", "all")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "Left out: 1 that never started." in " ".join(out.split())
    assert call(*MORNING, "--table")[1].startswith("13 jobs of morning_jobs.csv")


def test_every_policy_and_walltime_that_there_is_can_be_asked_for() -> None:
    assert list(simulate.POLICIES) == list(policies())
    assert tuple(simulate.WALLTIMES) == MODES
    assert simulate.DEFAULT in policies()


# --- what is simulated -----------------------------------------------------------------------------------------------


def test_walltimes_decide_who_fits_into_the_gap(call: Call) -> None:
    """The short jobs fit before the wide one if they asked for what they need, and not if they asked for two hours."""
    exact, bucket, longer = (
        facts(call, *MORNING, "--policy", "easy-pack", "--walltime", mode)["wait_s"]["mean"]
        for mode in ("exact", "bucket", "x3")
    )
    assert exact < bucket
    assert exact <= longer


def test_days_and_longest_run(call: Call) -> None:
    found = facts(call, *MORNING, "--from-day", "0.02", "--to-day", "0.07", "--max-days", "0.05")
    assert found["jobs"] == 3  # four, eight, one: submitted from second 1,728 to 6,048, and run
    assert found["makespan_s"] == 3600 + 4320 - 1728  # `eight` ends last, cut to 4,320 s; the window began at 1,728


def test_an_own_number_of_reservations(call: Call) -> None:
    assert facts(call, *MORNING, "--reservations", "0")["jobs"] == 13
    code, out, err = call(*MORNING, "--policy", "fifo-pack", "--reservations", "3")
    assert (code, out) == (64, "")
    assert "fifo-pack has no reservations" in err


def test_gpu_types_of_another_file(call: Call) -> None:
    code, _, err = call(*MORNING, "--gpu-types", str(TRACES / "morning_gpu_types.csv"), "--json")
    assert code == 0
    assert "names 1 job that is not in" in err


def test_columns_that_nobody_knows_are_told_of(call: Call, files: Callable[..., list[str]]) -> None:
    code, out, err = call(*files("job_id,submit_s,duration_s,gpus,colour\na,1,1,1,red\n"), "--json")
    assert (code, json.loads(out)["jobs"]) == (0, 1)
    assert "'colour'" in err


def test_one_node_and_one_job(call: Call, files: Callable[..., list[str]]) -> None:
    found = facts(call, *files(HEAD + "a,5,10,8\n"))
    assert (found["finished"], found["wait_s"]["max"], found["makespan_s"], found["utilisation"]) == (1, 0, 10, 1.0)


def test_all_jobs_at_once(call: Call, files: Callable[..., list[str]]) -> None:
    found = facts(call, *files(HEAD + "".join(f"j{at},7,100,8\n" for at in range(20))))
    assert (found["finished"], found["wait_s"]["max"], found["utilisation"]) == (20, 1900, 1.0)


def test_jobs_that_no_such_cluster_could_hold_are_told_of(call: Call, files: Callable[..., list[str]]) -> None:
    code, out, err = call(*files(HEAD + "a,0,10,1000\nb,0,10,8\n"), "--json")
    found = json.loads(out)
    assert (code, found["jobs"], found["finished"], found["refused"]) == (0, 2, 1, 1)
    assert "1 job was refused (never_satisfiable); the first is a:" in err


def test_one_job_of_each_kind_of_refusal_is_told_of(call: Call, files: Callable[..., list[str]]) -> None:
    head = "job_id,submit_s,duration_s,gpus,nodes,after\n"
    code, _, err = call(*files(head + "a,0,9,100,,\nb,0,9,8,3,\nx,0,9,1,,afterok:y\ny,0,9,1,,afterok:x\n"), "--json")
    assert (code, err.count("the first is")) == (0, 3)
    assert "1 job was refused (unequal); the first is b:" in err
    assert "2 jobs were refused (cycle); the first is x:" in err


def test_a_cluster_without_gpus(call: Call, files: Callable[..., list[str]]) -> None:
    nodes = "node_id,gpus,gpu_type,cpus,mem\nn,0,,4,\n"
    found = facts(call, *files("job_id,submit_s,duration_s,gpus,cpus\na,0,10,0,2\n", nodes))
    assert (found["finished"], found["utilisation"]) == (1, None)


def test_what_jobs_wait_for_outside_the_trace_is_there(call: Call, files: Callable[..., list[str]]) -> None:
    text = "job_id,submit_s,duration_s,gpus,after\na,0,10,8,condition:weights\nb,0,5,8,afterok:a\n"
    found = facts(call, *files(text))
    assert (found["finished"], found["makespan_s"]) == (2, 15)


# --- the same question, the same answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [[], ["--inflate", "1.3", "--seed", "7"]], ids=["run", "inflate"])
def test_the_same_bytes_but_for_what_is_measured(call: Call, more: list[str]) -> None:
    def told() -> str:
        found = facts(call, *MORNING, *more)
        return json.dumps({key: value for key, value in found.items() if key not in MEASURED})

    assert told() == told()


def test_another_seed_is_another_order(call: Call) -> None:
    first, second = (facts(call, *MORNING, "--inflate", "1.3", "--seed", seed) for seed in ("1", "2"))
    assert (first["placed"], first["jobs"]) != (second["placed"], second["jobs"])


def test_without_ends(call: Call) -> None:
    found = facts(call, *MORNING, "--inflate", "2")
    assert found["asked_share"] >= 2
    assert found["placed"] + found["passed_over"] == found["jobs"]
    assert found["unallocated_share"] == round(found["unallocated_gpus"] / 24, 6)
    _, out, _ = call(*MORNING, "--inflate", "2", "--policy", "all")
    assert max(map(len, out.splitlines())) <= 80
    assert "unallocated, % of all" in out


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_model_changes_the_world_and_is_named(call: Call) -> None:
    plain = facts(call, *MORNING, "--policy", "easy-pack")
    slowed = facts(call, *MORNING, "--policy", "easy-pack", "--model", "far:rack=0.5,pod=0.5,core=0.5,nodes=0.5")
    assert (plain["models"], plain["goodput"]["lost"]["far"]) == ([], 0)
    assert slowed["models"] == ["far:rack=0.5,pod=0.5,core=0.5,nodes=0.5"]
    assert slowed["goodput"]["lost"]["far"] > 0
    assert slowed["makespan_s"] > plain["makespan_s"]


def test_each_run_has_its_own_models_and_the_same_chances(call: Call) -> None:
    model = ["--model", "sessions:per_day=400", "--seed", "5"]
    alone = facts(call, *MORNING, *model)
    together = facts(call, *MORNING, *model, "--policy", "gpuguard", "--policy", "easy-pack")
    for found in (alone, *together):
        for key in MEASURED:
            del found[key]
    assert together[0] == alone
    assert together[1]["jobs"] == alone["jobs"] > 13
    assert facts(call, *MORNING, *model[:2], "--seed", "6")["wait_s"] != alone["wait_s"]


def test_the_models_are_listed_without_a_trace(call: Call) -> None:
    code, out, err = call("--model", "list")
    assert (code, err) == (0, "")
    assert "far " in out
    assert "least=" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("typed", ["nope", "far:speed=1", "far:least"])
def test_a_model_that_there_is_not(call: Call, typed: str) -> None:
    code, out, err = call(*MORNING, "--model", typed)
    assert (code, out) == (64, "")
    assert "far" in err


# --- the fleet -------------------------------------------------------------------------------------------------------


def test_a_fleet_tells_what_is_promised_and_the_same_twice(call: Call) -> None:
    one, two = (facts(call, "fleet", "--node-days", "90", "--seed", "5") for _ in range(2))
    promised = {
        "node_days", "faults", "missed", "false_drains", "false_drains_by_cause", "foreign_writes", "detection_s",
        "releases", "availability", "lost_gpu_hours", "wall_s",
    }  # fmt: skip
    assert promised <= one.keys()
    assert {"p50", "p99", "max"} <= one["detection_s"].keys()
    assert (one["node_days"], one["foreign_writes"], one["policy"]) == (90, 0, "gpuguard")
    for cost in ("wall_s", "peak_rss_mib"):
        del one[cost], two[cost]
    assert json.dumps(one) == json.dumps(two)


def test_policies_of_a_fleet_stand_side_by_side(call: Call) -> None:
    code, out, err = call("fleet", "--node-days", "60", "--policy", "any-xid", "--policy", "all", "--progress")
    assert code == 0
    assert "any-xid        gpuguard   reboot-clears" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "60 of 60 node-days" in err
    assert len(facts(call, "fleet", "--node-days", "30", "--policy", "all")) == 3


# --- claims ----------------------------------------------------------------------------------------------------------


def test_claims_without_their_traces(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gpuguard.simulator.claims")
    monkeypatch.chdir(tmp_path)
    code, out, err = call("claims", "--claim", "S4", "--claim", "S2", "--json")
    found = json.loads(out)
    assert (code, [one["id"] for one in found]) == (0, ["S2", "S4"])
    assert list(found[0])[:4] == ["id", "claim", "claimed", "measured"]
    assert "absent" in found[0]["measured"]
    assert not found[0]["holds"]
    assert {"free_gpus", "whole_nodes_free"} <= set(found[1]["measured"])
    assert "--traces DIR" in err
    code, out, _ = call("claims", "--claim", "S4", "--claim", "S2")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "1 not measured" in out


def test_claims_that_nobody_made(call: Call) -> None:
    pytest.importorskip("gpuguard.simulator.claims")
    assert call("claims", "--claim", "S99")[0] == 64


def test_claims_of_a_folder_that_is_none(call: Call) -> None:
    pytest.importorskip("gpuguard.simulator.claims")
    code, out, err = call("claims", "--traces", "nowhere/at/all")
    assert (code, out) == (2, "")
    assert "no folder" in err


# --- files that cannot be used ---------------------------------------------------------------------------------------

BAD = {
    "a column is missing": ("job_id,submit_s,gpus\na,1,1\n", ["line 1", "column duration_s"]),
    "a time is negative": (HEAD + "a,1,1,1\nb,-5,1,1\n", ["line 3", "column submit_s", "negative"]),
    "an id comes twice": (HEAD + "a,1,1,1\na,2,1,1\n", ["line 3", "column job_id", "also in line 2"]),
    "a row is cut short": (HEAD + "a,1,1,1\nb,2\n", ["line 3", "column duration_s"]),
    "there are no jobs": (HEAD, ["line 2", "column job_id", "no jobs"]),
    "nobody ever ran": (HEAD + "a,1,,1\n", ["no job has a run time"]),
    "a spreadsheet's semicolons": ((HEAD + "a,1,1,1\n").replace(",", ";"), ["line 1", "apart by semicolons"]),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_whole(call: Call, files: Callable[..., list[str]], text: str, words: list[str]) -> None:
    code, out, err = call(*files(text), "--json")
    assert (code, out) == (2, "")
    assert [word for word in words if word not in err] == []


def test_a_packed_file_that_was_cut_short(call: Call, files: Callable[..., list[str]]) -> None:
    text = HEAD + "".join(f"j{at},{at * 7919 % 10_000},{at % 977},{1 + at % 8}\n" for at in range(60))
    packed = gzip.compress(text.encode(), mtime=0)
    whole = facts(call, *files(packed, name="jobs.csv.gz"), "--max-days", "0.01")
    assert whole["jobs"] == 60
    code, out, err = call(*files(packed[: len(packed) // 2], name="jobs.csv.gz"), "--json")
    assert (code, out) == (2, "")
    assert "cut short after line" in err


def test_mistakes_of_both_files_are_told_at_once(call: Call, files: Callable[..., list[str]]) -> None:
    code, out, err = call(*files(HEAD + "a,1,1,many\n", "node_id,gpus,gpu_type,cpus,mem\nn,99,,,\n"))
    assert (code, out) == (2, "")
    assert "jobs.csv line 2, column gpus" in err
    assert "nodes.csv line 2, column gpus" in err


def test_a_file_that_is_not_there(call: Call) -> None:
    code, out, err = call("--jobs", "nowhere/jobs.csv", *MORNING[2:])
    assert (code, out) == (2, "")
    assert "nowhere/jobs.csv cannot be read" in err


# --- usage -----------------------------------------------------------------------------------------------------------

TYPED = {
    "no jobs": (MORNING[2:], "--jobs FILE is missing"),
    "no files": ([], "--jobs and --nodes FILE is missing"),
    "an unknown policy": ([*MORNING, "--policy", "best"], "fifo-spread"),
    "an unknown walltime": ([*MORNING, "--walltime", "x4"], "bucket"),
    "days the wrong way round": ([*MORNING, "--from-day", "3", "--to-day", "2"], "no window"),
    "days without jobs": ([*MORNING, "--from-day", "3"], "days 0.0 to 0.1"),
    "a day that is none": ([*MORNING, "--from-day", "monday"], "no number"),
    "a share of nothing": ([*MORNING, "--inflate", "0"], "1.3 for 130 %"),
    "a share without end": ([*MORNING, "--inflate", "inf"], "no number"),
    "run times of nothing": ([*MORNING, "--max-days", "0"], "above 0"),
    "a seed that is none": ([*MORNING, "--seed", "-1"], "whole number"),
    "a picture of no form": ([*MORNING, "--picture", "run.pdf"], ".svg"),
    "a picture of several runs": ([*MORNING, "--picture", "run.svg", "--policy", "all"], "one --policy"),
    "a picture of an instant": ([*MORNING, "--inflate", "1", "--chart", "run.svg"], "no picture"),
    "two pictures in one file": ([*MORNING, "--picture", "a.svg", "--chart", "./a.svg"], "a file for each"),
    "colours of no chart": ([*MORNING, "--colour", "tier"], "--chart FILE"),
    "a mistyped option": (["--job", *MORNING[1:]], "unrecognized arguments: --job"),
    "a word too many": ([*MORNING, "jobs.csv"], "'jobs.csv' is no option"),
    "an unknown setting of manual": ([*MORNING, "--policy", "manual:best=1"], "no setting 'best'; it has: look"),
    "a model where no scheduler runs": ([*MORNING, "--policy", "manual", "--model", "far"], "no scheduler runs"),
    "two forms": ([*MORNING, "--json", "--table"], "not allowed with"),
    "what is no part of it": (["weather"], "`claims` or `fleet`"),
    "claims of a trace": (["claims", *MORNING], "--jobs has no part"),
    "a fleet of a trace": (["fleet", *MORNING], "--jobs has no part"),
    "a fleet under a policy of traces": (["fleet", "--policy", "easy-pack"], "none of a fleet"),
    "no node-days at all": (["fleet", "--node-days", "0"], "from 1 to"),
    "node-days of a trace": ([*MORNING, "--node-days", "5"], "simulate fleet"),
    "a policy of fleets": ([*MORNING, "--policy", "any-xid"], "simulate fleet"),
    "traces of a run": ([*MORNING, "--traces", "."], "simulate claims"),
    "a claim of a run": ([*MORNING, "--claim", "S1"], "simulate claims"),
    "a model without a world": ([*MORNING, "--inflate", "1", "--model", "far"], "--model"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "word"), TYPED.values(), ids=TYPED)
def test_what_cannot_be_understood_is_64(call: Call, argv: list[str], word: str) -> None:
    code, out, err = call(*argv)
    assert (code, out) == (64, "")
    assert word in err


# --- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_are_written_and_nothing_else_changes(call: Call, tmp_path: Path) -> None:
    run, chart = tmp_path / "run.svg", tmp_path / "chart.png"
    code, out, err = call(*MORNING, "--json", "--picture", str(run), "--chart", str(chart), "--colour", "end")
    assert (code, json.loads(out)["jobs"]) == (0, 13)
    assert run.read_bytes().startswith(b"<?xml")
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert err.count("is written") == 2


def test_a_picture_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "run.svg", tmp_path / "latest.svg"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    whole = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        whole(self, data[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            simulate._write(link, b"after")
    assert path.read_bytes() == b"before"
    simulate._write(link, b"after")
    assert (path.read_bytes(), path.stat().st_mode & 0o777, link.is_symlink()) == (b"after", 0o640, True)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["latest.svg", "run.svg"]


def test_a_picture_that_cannot_be_written(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run.svg").mkdir()
    code, out, err = call(*MORNING, "--json", "--picture", str(tmp_path / "run.svg"))
    assert (code, out) == (2, "")
    assert "cannot be written" in err


def test_a_disk_that_is_full_does_not_cost_the_figures(call: Call, tmp_path: Path) -> None:
    (tmp_path / "run.svg").symlink_to("/dev/full")
    code, out, err = call(*MORNING, "--json", "--picture", str(tmp_path / "run.svg"))
    assert (code, json.loads(out)["jobs"]) == (2, 13)
    assert "run.svg cannot be written" in err


def test_a_picture_nowhere_is_told_before_the_files_are_read(call: Call) -> None:
    code, out, err = call("--jobs", "none.csv", "--nodes", "none.csv", "--picture", "nowhere/run.svg")
    assert (code, out) == (2, "")
    assert "no folder nowhere" in err


# --- the models ------------------------------------------------------------------------------------------------------


def test_the_list_of_models_is_json_where_json_was_asked_for(call: Call) -> None:
    shelf = facts(call, "--model", "list")
    assert {one["model"] for one in shelf} >= {"far", "faults", "manual"}
    assert next(one["settings"] for one in shelf if one["model"] == "far")["sockets"] == "0.5"
    assert "sockets=0.5" in call("--model", "list")[1]


# --- where people choose by hand -------------------------------------------------------------------------------------


def test_people_who_choose_by_hand_stand_beside_a_policy(call: Call) -> None:
    """The list of models offers it, so it can be asked for."""
    hand, _ = found = facts(call, *MORNING, "--policy", "manual:tries=0", "--policy", "easy-pack")
    assert [one["policy"] for one in found] == ["manual:tries=0", "easy-pack"]
    assert [key for key in KEYS if key not in hand] == []
    assert hand["finished"] + hand["given_up"] + hand["refused"] == hand["jobs"] == 13
    assert hand["refused"] == 1, "work for CPUs alone"
    assert hand["wait_s"]["max"] == 0, "nobody looks again, so all take at once"
    assert hand["goodput"]["lost"]["sharing"] > 0
    assert {key: hand[key] for key in KEYS if key not in MEASURED} == {
        key: facts(call, *MORNING, "--policy", "manual:tries=0")[key] for key in KEYS if key not in MEASURED
    }


def test_the_table_tells_who_gave_up_by_hand_alone(call: Call) -> None:
    assert "  given up" in call(*MORNING, "--policy", "manual")[1]
    assert "  given up" not in call(*MORNING, "--policy", "easy-pack")[1]


# --- what it costs others --------------------------------------------------------------------------------------------


def test_other_commands_do_not_load_the_arrays() -> None:
    """Hooks start this program on every job; numpy alone would double what that costs."""
    code = (
        "import sys\nfrom gpuguard import cli\n"
        "for argv in (['--help'], ['check', '--help'], ['simulate', '--help']):\n"
        "    try: cli.run(argv)\n    except SystemExit: pass\n"
        "print([name for name in ('numpy', 'matplotlib', 'gpuguard.scheduler', 'random') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
