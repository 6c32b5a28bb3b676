"""What other schedulers are told of our tiers, queues, levels and preemption, with the settings that ship.

`pytest --rewrite` writes the files anew; read the difference.
"""

from collections.abc import Callable
from pathlib import Path

from gpuguard.runtime.plugins import shelf
from gpuguard.scheduler.renderings import Wish
from gpuguard.scheduler.settings import Settings

HERE = Path(__file__).parent / "scheduler_render"
SHELF = shelf("gpuguard.scheduler.renderings")
WISH = Wish(gpus=1040, memory=240_000, nodes={"training": "gpu[003-130]", "interactive": "gpu[001-002]"})


def test_each_rendering(golden: Callable[[Path, str], None]) -> None:
    assert set(SHELF) >= {"slurm", "volcano"}
    for module in SHELF.values():
        for name, text in module.render(Settings(), WISH).files.items():
            assert text.endswith("\n")
            prose = [line for line in text.splitlines() if line.startswith("#") and not line.startswith("# sacctmgr")]
            assert max(map(len, prose)) <= 120
            golden(HERE / name, text)
