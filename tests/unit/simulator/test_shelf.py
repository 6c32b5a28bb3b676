"""The shelf of models: the index is the files, and what is typed is read or refused with a next step."""

import random
from pathlib import Path

import pytest

from gpuguard.errors import UsageError
from gpuguard.simulator import models, shelf
from tests.support.worlds import nodes, ran, traced

FILES = sorted(path.stem for path in Path(models.__path__[0]).glob("*.py") if not path.stem.startswith("_"))


def test_the_index_is_the_files() -> None:
    assert sorted(shelf.MODELS | shelf.BYPASSES) == FILES


@pytest.mark.parametrize("name", FILES)
def test_each_has_the_shelfs_shape(name: str) -> None:
    module = (shelf.MODELS | shelf.BYPASSES)[name]
    assert shelf.lines()[name].endswith(".")
    assert "Assumes" in (module.__doc__ or "")
    assert all("=" in key for key in shelf.keys(name))
    made = module.build({}, random.Random(1))
    assert made.name == name
    # What is offered as a default can be typed.
    module.build(dict(key.split("=", 1) for key in shelf.keys(name)), random.Random(1))


def test_settings_are_read() -> None:
    (model,) = shelf.build(["checkpoints:interval=10m,write=90s"], random.Random(1))
    assert vars(model) == {"_interval": 600, "_stall": 0.0, "_write": 90}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("nearness", "there is no model 'nearness'; there are: checkpoints, far"),
        ("manual", "say --policy manual instead"),
        ("far:near=1", "model far has no setting 'near'; it has: switch, socket"),
        ("far:sockets", "model far: 'sockets' is no setting; say far:key=value"),
        ("far:sockets=slow", "model far: sockets=slow does not fit (Expected `float`"),
        ("far:sockets=0", "say for example sockets=0.5"),
        ("checkpoints:interval=-1", "model checkpoints: interval=-1 does not fit"),
    ],
)
def test_mistakes_name_what_can_be_said(typed: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        shelf.build([typed], random.Random(1))
    assert says in str(caught.value)


def test_a_world_without_the_scheduler_takes_a_policys_place() -> None:
    assert shelf.bypass("manual:look=1", random.Random(1)).name == "manual"
    with pytest.raises(UsageError, match="there is: manual"):
        shelf.bypass("far", random.Random(1))


def test_a_model_is_asked_for_once() -> None:
    with pytest.raises(UsageError, match="model far is asked for twice"):
        shelf.build(["far", "far:pod=1"], random.Random(1))


def test_what_a_model_draws_does_not_hang_on_the_others() -> None:
    alone = shelf.build(["faults"], random.Random(5))
    among = shelf.build(["far", "faults", "checkpoints"], random.Random(5))
    assert vars(alone[0])["_seed"] == vars(among[2])["_seed"]


def test_models_that_cost_nothing_change_nothing() -> None:
    jobs = [traced(f"j{at}", 1 + at % 8, 100 + at, at=at * 5, checkpoints=at % 2 == 0) for at in range(60)]
    plain = ran(jobs, where=nodes(2, 2)).course
    still = shelf.build(
        ["far:socket=1,sockets=1,pod=1,core=1,nodes=1", "checkpoints", "faults:rate=0,common=0"], random.Random(1)
    )
    assert ran(jobs, still, nodes(2, 2)).course.jobs == plain.jobs
