"""Each file on a shelf has the shelf's shape and its proof beside it."""

import argparse
import dataclasses
import inspect
import json
from pathlib import Path
from random import Random
from types import ModuleType
from typing import get_args, get_type_hints

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from gpuguard.actuators import BESIDE, TARGETS
from gpuguard.commands.agent import arguments
from gpuguard.model.notices import URGENCIES
from gpuguard.model.readings import SubjectKind
from gpuguard.model.units import Secret
from gpuguard.runtime import assembly
from gpuguard.runtime.assembly import quantities
from gpuguard.runtime.plugins import shelf
from gpuguard.scheduler.placement import TERMS
from gpuguard.scheduler.renderings import Rendering, Wish
from gpuguard.scheduler.scorers import scorer
from gpuguard.scheduler.scoring import Want
from gpuguard.scheduler.settings import Settings as Site
from gpuguard.simulator import claims
from gpuguard.simulator.shelf import BYPASSES, MODELS
from tests.support.notices import UTC, notice, over
from tests.support.vacancies import vacancy

CHECKOUT = Path(__file__).resolve().parents[2]
UNIT = CHECKOUT / "tests" / "unit"


def _on(package: str) -> list[ParameterSet]:
    return [pytest.param(name, module, id=name) for name, module in shelf(package).items()]


def _settings_are_complete(module: ModuleType) -> None:
    """A site needs to write nothing: every setting has a default, and nothing changes it later."""
    settings: type = module.Settings
    assert dataclasses.is_dataclass(settings)
    made = settings()
    for field in dataclasses.fields(settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, None)


def _is_tested(package: str, name: str) -> bool:
    return (UNIT / package / f"test_{name}.py").exists() or any((UNIT / package / name).glob("test_*.py"))


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.detectors"))
def test_detector(name: str, module: ModuleType) -> None:
    _settings_are_complete(module)
    assert next(iter(inspect.signature(module.build).parameters)) == "settings"
    assert _is_tested("detectors", name)
    shapes = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if getattr(kind, "name", None) == name]
    assert len(shapes) == 1
    (shape,) = shapes
    for part in ("reads", "memory", "start"):
        assert hasattr(shape, part)
    assert hasattr(shape, "observe") != hasattr(shape, "survey")
    if not hasattr(shape, "of"):
        assert not hasattr(shape, "survey")
        assert hasattr(shape, "subjects")
        return
    # It judges what is measured: every column is declared by somebody, and it was seen to see, to let be, and not to
    # know.
    known = quantities(shelf("gpuguard.sources"))
    assert set(shape.reads) <= known.keys()
    assert set(shape.of) <= set(get_args(SubjectKind))
    assert {known[column].of for column in shape.reads} <= set(shape.of)
    stories = {path.stem for path in (CHECKOUT / "fixtures" / "detectors" / name).glob("*.scn")}
    assert {"fault", "healthy", "unknown"} <= stories
    assert (CHECKOUT / "rules" / "detectors" / f"{name}.toml").exists() or not dataclasses.fields(module.Settings)


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.sources"))
def test_source(name: str, module: ModuleType) -> None:
    _settings_are_complete(module)
    asked = list(inspect.signature(module.build).parameters)
    assert asked[:3] == ["settings", "root", "clock"]
    assert asked[3:] in ([], ["rules"], ["state_dir"])
    assert _is_tested("sources", name)


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.actuators"))
def test_actuator(name: str, module: ModuleType) -> None:
    _settings_are_complete(module)
    assert list(inspect.signature(module.build).parameters) == ["settings"]
    assert name in TARGETS or name in BESIDE
    assert _is_tested("actuators", name)


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.kernel_log.grammars"))
def test_grammar(name: str, module: ModuleType) -> None:
    """It has markers, and lines of its kind to prove itself on."""
    shapes = [
        kind for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and hasattr(kind, "markers") and hasattr(kind, "parse")
    ]  # fmt: skip
    assert len(shapes) == 1
    assert shapes[0].markers
    assert all(isinstance(marker, bytes) and len(marker) >= 3 for marker in shapes[0].markers)
    assert any((CHECKOUT / "fixtures" / "kernel_log" / name).iterdir())


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.kernel_log.forms"))
def test_form(name: str, module: ModuleType) -> None:
    shapes = [
        kind for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and hasattr(kind, "read") and hasattr(kind, "name")
    ]  # fmt: skip
    assert shapes
    assert name in {shape.name for shape in shapes}


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.metrics"))
def test_metrics(name: str, module: ModuleType) -> None:
    assert list(inspect.signature(module.families).parameters) == ["snapshot"]


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.compat"))
def test_compat(name: str, module: ModuleType) -> None:
    _settings_are_complete(module)
    assert list(inspect.signature(module.page).parameters) == ["snapshot", "settings", "hostname"]
    assert _is_tested("compat", name)
    # It can be asked for by name, on the command line and in the configuration.
    parser = argparse.ArgumentParser()
    arguments(parser)
    (option,) = (action for action in parser._actions if action.dest == "compat")
    assert option.choices == tuple(shelf("gpuguard.compat"))
    assert name in get_args(get_type_hints(assembly.Settings)["compat"])


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.notices"))
def test_form_of_notices(name: str, module: ModuleType) -> None:
    """It has the settings that the carrier reads, nothing is sent by default, and what it renders is JSON of a kind."""
    _says_what_it_is(module)
    _settings_are_complete(module)
    assert _is_tested("notices", name)
    assert list(inspect.signature(module.render).parameters) == ["notice", "settings", "utc"]
    made = module.Settings()
    assert (made.url, made.url_file) == ("", "")
    assert made.at_least in URGENCIES
    assert made.repeat >= 0
    assert get_type_hints(module.Settings)["url"] is Secret
    for told in (notice(), over(), notice(text="\udcff\n<!channel>", node="")):
        message = module.render(told, made, UTC)
        assert json.loads(message.body)
        assert "json" in message.headers["Content-Type"]


def _says_what_it_is(module: ModuleType) -> None:
    first = (module.__doc__ or "").partition("\n")[0]
    assert len(first) > 20
    assert first.endswith((".", ":", "?"))


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.scheduler.scorers"))
def test_scorer(name: str, module: ModuleType) -> None:
    """It has its file's name, judges every node with one whole number, and has its place in the usual terms."""
    _says_what_it_is(module)
    assert _is_tested("scheduler/scorers", name)
    assert list(inspect.signature(module.build).parameters) == ["vacancy"]
    made = scorer(name, vacancy([[1000, 1000], [500, 0]]))
    assert made.name == name
    for want in (Want(gpus=1), Want(milli=300), Want(cpus=1000)):
        made.observe(want)
        made.changed(1)
        found = made.score(want, np.arange(2), 60)
        assert (found.dtype, found.shape) == (np.dtype(np.int64), (2,))
    assert any(name in terms for terms in TERMS.values())


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.scheduler.renderings"))
def test_rendering(name: str, module: ModuleType) -> None:
    _says_what_it_is(module)
    assert _is_tested("scheduler/renderings", name)
    assert list(inspect.signature(module.render).parameters) == ["settings", "wish"]
    made = module.render(Site(), Wish(gpus=64, memory=40_960))
    assert isinstance(made, Rendering)
    assert all(text.endswith("\n") for text in made.files.values())
    assert made.facts


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.simulator.models"))
def test_model(name: str, module: ModuleType) -> None:
    """Every setting has a default, what nobody measured is said, and `--model` finds it."""
    _says_what_it_is(module)
    assert _is_tested("simulator/models", name)
    assert "Assumes " in (module.__doc__ or "")
    assert list(inspect.signature(module.build).parameters) == ["settings", "dice"]
    assert module.Settings.__struct_config__.frozen
    assert module.Settings() == module.Settings()
    assert (name in MODELS) != (name in BYPASSES)
    assert module.build({}, Random(1)).name == name


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.simulator.traces"))
def test_trace_reader(name: str, module: ModuleType) -> None:
    _says_what_it_is(module)
    assert _is_tested("simulator/traces", name)
    for read in (module.jobs, module.nodes):
        assert list(inspect.signature(read).parameters)[:2] == ["lines", "file"]


@pytest.mark.parametrize(("name", "module"), _on("gpuguard.simulator.claims"))
def test_claim(name: str, module: ModuleType) -> None:
    """It is in the order in which claims are told, and tells what it needs."""
    _says_what_it_is(module)
    assert name in claims.ORDER
    assert list(inspect.signature(module.measure).parameters) == ["given"]
    assert list(inspect.signature(module.judge).parameters) == ["measured"]
    assert set(module.NEEDS) <= claims.TRACES.keys()
    assert all(isinstance(told, str) and told for told in (module.ID, module.CLAIM, module.CLAIMED))
