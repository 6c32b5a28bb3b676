"""What may ask for something to be watched, and how it says so."""

from pathlib import Path

import pytest

from gpuguard.errors import ConfigInvalid, NotUnderstood
from gpuguard.model.ids import JobId
from gpuguard.runtime.config import load_config
from gpuguard.sources.watchers import Settings
from gpuguard.sources.watchers.watch import Watch, absolute, named, of_environment, of_file, variables_of

TWO = b"""
[[watch]]
job = "slurm/8123"
rank = 0
world = 2
pid = 700
uid = 1000
log = "/srv/run7/0.log"
pattern = 'iteration\\s+(\\d+)/'

[[watch]]
job = "slurm/8123"
rank = 1
file = "/srv/run7/1.step"
checkpoints = "/srv/run7/ckpt"
"""


def test_a_file_of_several() -> None:
    first, second = of_file(TWO)
    assert first == Watch(
        job="slurm/8123", rank=0, world=2, pid=700, uid=1000, log="/srv/run7/0.log", pattern=r"iteration\s+(\d+)/"
    )
    assert second == Watch(job="slurm/8123", rank=1, file="/srv/run7/1.step", checkpoints="/srv/run7/ckpt")


def test_a_file_of_one() -> None:
    assert of_file(b'job = "a"\nlog = "/l"') == (Watch(job="a", log="/l"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\xff", "no TOML"), (b"job", "no TOML"), (b"x = " + b"[" * 5000, "no TOML"),
        (b'log = "/l"', "job"), (b'job = ""\nlog = "/l"', "job: must be named"),
        (b'job = "a"', "file, log or checkpoints"),
        (b'job = "a"\npattern = "x"\nfile = "/f"', "needs the log"),
        (b'job = "a"\nlog = "/l"\npattern = ".*a"', "too many ways"),
        (b'job = "a"\nlog = "/l"\nlimit = 5', "limit"), (b'job = "a"\nlog = "/l"\nrank = -1', "rank"),
        (b'job = "a"\nlog = "/l"\nrank = "0"', "rank"), (b'job = "a"\nlog = "/l\\u0000"', "without NUL"),
        (b'job = "a"\n[[watch]]\njob = "b"\nlog = "/l"', "not both"), (b"watch = 5", "not both"),
        (b"watch = [5]", "not both"), (b"rank = " + b"9" * 5000, "no TOML"), (b"a = " + b"[" * 5000, "no TOML"),
        (b'[[watch]]\njob = "b"\nlog = "/l"\n[[watch]]\njob = "c"', "file, log or checkpoints"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_say(text: bytes, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        of_file(text)


def test_an_environment() -> None:
    variables = variables_of(
        b"HOME=/root\0GPUGUARD_WATCH_LOG=train.log\0GPUGUARD_WATCH_PATTERN=step (\\d+)\0RANK=3\0WORLD_SIZE=8\0"
        b"\xff=\xff\0SLURM_PROCID=9\0SECRET=1\0"
    )  # fmt: skip
    assert "SECRET" not in variables
    assert of_environment(variables, JobId("slurm/9"), 50) == Watch(
        job="slurm/9", rank=3, world=8, pid=50, log="train.log", pattern=r"step (\d+)"
    )
    assert of_environment({"RANK": "3"}, JobId("slurm/9"), 50) is None
    with pytest.raises(NotUnderstood, match="needs the log"):
        of_environment({"GPUGUARD_WATCH_PATTERN": "x"}, JobId("slurm/9"), 50)
    odd = of_environment({"GPUGUARD_WATCH_FILE": "f", "RANK": "three", "SLURM_PROCID": "2"}, JobId("a"), 50)
    assert odd is not None
    assert odd.rank == 2


def test_names_and_places() -> None:
    assert [named(job, 7) for job in ("slurm/9", "slurm/", "llama", "team/x", "claimed/8-x")] == [
        "slurm/9", "claimed/7-slurm_", "claimed/7-llama", "claimed/7-team_x", "claimed/7-claimed_8-x",
    ]  # fmt: skip
    assert absolute("/tmp/b", Path("/proc/5")) == "/proc/5/root/tmp/b"
    assert absolute("a/b", Path("/proc/5")) == "/proc/5/cwd/a/b"


def test_the_configuration_has_a_table_for_each(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[[sources.watchers.watch]]\njob = "a"\nrank = 1\nlog = "/l"\n')
    settings = load_config(path, {"sources.watchers": Settings}).settings("sources.watchers")
    assert [dict(table) for table in settings.watch] == [{"job": "a", "rank": 1, "log": "/l"}]
    path.write_text('[[sources.watchers.watch]]\njob = "a"\n')
    with pytest.raises(ConfigInvalid, match=r"\[sources.watchers\] watch: .* number 1: file, log or checkpoints"):
        load_config(path, {"sources.watchers": Settings})


def test_what_a_site_may_set() -> None:
    Settings(watch=({"job": "a", "rank": 1, "log": "/l"},))
    with pytest.raises(ValueError, match=r"^watch: number 2: pattern: needs the log"):
        Settings(watch=({"job": "a", "log": "/l"}, {"job": "a", "file": "/l", "pattern": "x"}))
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]
