"""promtool, Prometheus' own checker of rules and configurations."""

import shutil
import subprocess
from pathlib import Path

from tests.support.require import require


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The result of one call, made in the folder."""
    program = shutil.which("promtool")
    require("promtool", program is not None, "apt-get install prometheus, or `./dev test --install`")
    return subprocess.run(
        ["promtool", *arguments], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
