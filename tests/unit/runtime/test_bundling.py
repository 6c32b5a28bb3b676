"""Bundles for pages: one an hour, by a process of its own, the newest kept."""

import sys
from pathlib import Path

import msgspec

from gpuguard.model.instants import Instant
from gpuguard.runtime.bundling import EVERY, KEPT, Bundles
from tests.support.core import instant

# Writes what it was asked to do into the file that `--output` names.
WRITES = (sys.executable, "-c", "import sys; open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:]))")
FAILS = (sys.executable, "-c", "raise SystemExit(2)")


class Watch:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.moment = instant(100.0)

    def now(self) -> Instant:
        return self.moment

    def forward(self, seconds: float) -> None:
        utc = (self.moment.utc or 0.0) + seconds
        self.moment = msgspec.structs.replace(self.moment, mono=self.moment.mono + seconds, utc=utc)


def test_one_is_made_an_hour_and_the_newest_are_kept(tmp_path: Path) -> None:
    clock = Watch()
    bundles = Bundles(tmp_path, clock, tmp_path / "config.toml", WRITES)
    first = bundles.newest()
    words = Path(first).read_text()
    assert words.startswith("support-bundle --json --state-dir ")
    assert "--config" in words
    clock.forward(EVERY - 1.0)
    assert bundles.newest() == first
    made = {first}
    for _ in range(4):
        clock.forward(EVERY)
        made.add(bundles.newest())
    assert len(made) == 5
    assert {str(path) for path in (tmp_path / "bundles").iterdir()} == set(sorted(made)[-KEPT:])


def test_one_that_cannot_be_made_is_no_path(tmp_path: Path) -> None:
    assert Bundles(tmp_path, Watch(), None, FAILS).newest() == ""
    assert Bundles(tmp_path, Watch(), None, ("/nonexistent/gpuguard",)).newest() == ""
    clock = Watch()
    failing = Bundles(tmp_path, clock, None, FAILS)
    failing.newest()
    clock.forward(10.0)
    assert failing.newest() == ""


def test_without_a_folder_there_is_none(tmp_path: Path) -> None:
    assert Bundles(tmp_path / "absent", Watch(), None, WRITES).newest() == ""
