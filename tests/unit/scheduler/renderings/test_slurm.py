"""What Slurm is told says the same as the settings."""

import re
import subprocess

import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.scheduler.renderings import Wish, slurm
from gpuguard.scheduler.settings import DAY, HOUR, Order, Pool, Preemption, Queue, Settings
from gpuguard.scheduler.tiers import bands


def _conf(settings: Settings, wish: Wish | None = None) -> dict[str, str]:
    """Keys of slurm.conf; a partition by its name."""
    text = slurm.render(settings, wish or Wish()).files["gpuguard-slurm.conf"]
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            name, _, rest = value.partition(" ")
            assert (name if key == "PartitionName" else key) not in found, "Slurm takes a key once"
            found |= {f"partition {name}": rest} if key == "PartitionName" else {key: value}
    return found


def _given(settings: Settings, wish: Wish | None = None) -> dict[str, dict[str, str]]:
    script = slurm.render(settings, wish or Wish()).files["gpuguard-slurm-qos.sh"]
    rows = [line.split()[1:] for line in script.splitlines() if line.startswith("give ")]
    return {name: dict(word.split("=", 1) for word in words) for name, *words in rows}


def test_queues_are_partitions_that_refuse_longer_jobs() -> None:
    conf = _conf(Settings())
    assert conf["EnforcePartLimits"] == "ALL"
    for name, limit in {
        "trial": "02:00:00", "training": "7-00:00:00", "urgent": "1-00:00:00", "interactive": "01:00:00",
    }.items():  # fmt: skip
        assert f" MaxTime={limit} " in conf[f"partition {name}"]
        assert " DefCpuPerGPU=2 " in conf[f"partition {name}"]
    assert [name for name, words in conf.items() if "Default=YES" in words] == ["partition training"]


def test_only_a_pool_that_spreads_fills_the_emptiest_node_first() -> None:
    conf = _conf(Settings())
    assert [name for name, words in conf.items() if "LLN=YES" in words] == ["partition interactive"]


def test_the_plan_reaches_as_far_as_the_longest_limit() -> None:
    def words(settings: Settings) -> list[str]:
        return _conf(settings)["SchedulerParameters"].split(",")

    assert {"bf_window=10080", "bf_resolution=600", "bf_continue", "bf_job_part_count_reserve=5"} <= {
        *words(Settings())
    }
    short = Settings(queues={"training": Queue(limit=HOUR + 1)})
    assert {"bf_window=61", "bf_resolution=60"} <= {*words(short)}
    endless = Settings(queues={"training": Queue(limit=None)})
    assert "bf_window=43200" in words(endless)
    assert " MaxTime=UNLIMITED " in _conf(endless)["partition training"]
    waiting = Settings(pools={"training": Pool(wait=900), "interactive": Pool(wait=0)})
    assert "max_switch_wait=900" in words(waiting)


def test_one_step_of_the_qos_outweighs_all_the_rest() -> None:
    conf = _conf(Settings())
    rest = [int(conf[f"PriorityWeight{key}"]) for key in ("Age", "FairShare", "Partition")]
    rest.append(int(conf["PriorityWeightTRES"].partition("=")[2]))
    assert int(conf["PriorityWeightQOS"]) > sum(rest)
    assert conf["PriorityFlags"] == "NO_NORMAL_QOS"
    assert conf["PriorityDecayHalfLife"] == "7-0"
    assert _conf(Settings(order=Order(half_life=DAY // 2)))["PriorityDecayHalfLife"] == "0-12"


def test_a_qos_for_each_band_and_who_it_may_stop() -> None:
    given = _given(Settings())
    assert set(given) == {band.name for band in bands(Settings())}
    for band in bands(Settings()):
        assert given[band.name].get("Preempt", "") == ",".join(band.takes)
        assert given[band.name]["PreemptMode"] == ("requeue" if band.victim else "cluster")
        assert given[band.name]["GraceTime"] == ("120" if band.victim else "0")
    assert given["interactive-low"]["MaxWall"] == "01:00:00"
    assert given["background-high"]["MaxTRES"] == "gres/gpu=0"


def test_a_list_is_written_after_those_that_it_names() -> None:
    """Slurm 22.05.8 was seen to take a list once emptied for a loop in whatever names it."""
    seen: set[str] = set()
    for name, words in _given(Settings()).items():
        assert {*words.get("Preempt", name).split(",")} - {name} <= seen
        seen.add(name)
    script = slurm.render(Settings(), Wish()).files["gpuguard-slurm-qos.sh"]
    assert not re.search(r"Preempt=( |''|$)", script, re.MULTILINE)


def test_the_high_level_is_capped_once_the_gpus_are_known() -> None:
    given = _given(Settings(), Wish(gpus=100))
    assert (
        sum(int(words["GrpTRES"].partition("=")[2]) for name, words in given.items() if name.endswith("high")) == 20 - 1
    )
    assert given["background-high"]["GrpTRES"] == "gres/gpu=-1"
    assert {words["GrpTRES"] for words in _given(Settings()).values()} == {"gres/gpu=-1"}
    assert "WARNING" in slurm.render(Settings(), Wish()).files["gpuguard-slurm-qos.sh"]


def test_the_script_is_one_that_a_shell_reads() -> None:
    settings = Settings(
        shares={"vision": 2.0, "vision/lidar:jo": 0.5, ":max": 1.0}, queues={"training": Queue(gpus=64)}
    )
    script = slurm.render(settings, Wish()).files["gpuguard-slurm-qos.sh"]
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)
    assert "sacctmgr -i modify account where name=vision set fairshare=200\n" in script
    assert "sacctmgr -i modify user where name=jo account=lidar set fairshare=50\n" in script
    assert "sacctmgr -i modify user where name=max set fairshare=100\n" in script
    assert "give queue-training GrpTRES=gres/gpu=64 " in script
    assert " QOS=queue-training " in _conf(settings)["partition training"]


def test_types_of_gpu_are_charged_by_their_weight() -> None:
    conf = _conf(Settings(gpu_weights={"A10": 1.0, "A100": 4.0, "T4": 0.5}))
    assert 'TRESBillingWeights="CPU=0,Mem=0,GRES/gpu=1,GRES/gpu:a100=3,GRES/gpu:t4=-0.5"' in conf["partition trial"]
    assert conf["AccountingStorageTRES"] == "gres/gpu,gres/gpu:a10,gres/gpu:a100,gres/gpu:t4"


def test_memory_is_counted_once_it_is_known() -> None:
    assert _conf(Settings())["SelectTypeParameters"] == "CR_Core"
    conf = _conf(Settings(), Wish(memory=128_000))
    assert (conf["SelectTypeParameters"], conf["DefMemPerGPU"]) == ("CR_Core_Memory", "128000")


def test_what_is_switched_off() -> None:
    conf = _conf(Settings(preemption=Preemption(enabled=False), backfill=False, key="fifo"))
    assert (conf["PreemptType"], conf["PreemptMode"]) == ("preempt/none", "OFF")
    assert (conf["SchedulerType"], conf["PriorityType"]) == ("sched/builtin", "priority/basic")
    assert not [key for key in conf if key.startswith("PriorityWeight")]


@pytest.mark.parametrize("nodes", ["gpu[1", "gpu1]", "gpu[]", "gpu[1-2]]", "[1-2]", "gpu[a-b]", "gpu[1,[2]]"])
def test_a_list_of_nodes_closes_its_brackets(nodes: str) -> None:
    with pytest.raises(ConfigInvalid, match="no list of nodes"):
        slurm.render(Settings(), Wish(nodes={"interactive": nodes}))
    assert slurm.render(Settings(), Wish(nodes={"interactive": "gpu[001-002,7]-ib,login1"})).files


def test_every_name_that_slurm_would_not_take_is_told_at_once() -> None:
    settings = Settings(queues={"a b": Queue(), "interactive": Queue()}, gpu_weights={"H100 80": 2.0})
    with pytest.raises(ConfigInvalid) as error:
        slurm.render(settings, Wish(nodes={"night": "node1", "training": "node1 State=DOWN"}))
    told = "\n".join(error.value.mistakes)
    assert len(error.value.mistakes) == 5
    for word in ("'a b'", "queue and pool at once", "'H100 80'", "'night'", "State=DOWN"):
        assert word in told
