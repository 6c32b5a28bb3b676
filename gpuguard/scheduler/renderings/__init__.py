"""A shelf of renderings: one file for each other scheduler that is told our tiers, queues, levels and preemption.

A file, or a folder, has `render(settings: Settings, wish: Wish) -> Rendering`, which raises ConfigInvalid with every
mistake where a name or a number cannot be said there; and a docstring that says for whom it writes and which version
defines the words. `gpuguard scheduler render --for` takes its name. What the other scheduler cannot do stands in a
comment of the text, never left out in silence. Proof beside it: a golden output, and the real scheduler where it can
be had.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever asks can say of the cluster.

    Shape   gpus: how many there are, for caps; None: nobody said. memory: MiB that each GPU of the poorest node has.
            nodes: by pool, its nodes in the other scheduler's own words
    """

    gpus: int | None = None
    memory: int | None = None
    nodes: Mapping[str, str] = {}


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: texts by name, in the order of use. `facts`: the same as a structure, for programs.

    Any: facts are JSON, which mixes types.
    """

    files: Mapping[str, str]
    facts: Mapping[str, Any]
