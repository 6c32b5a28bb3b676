"""A shelf of forms: one file for each way in which others want the wiring written.

A file has `render(topology: Topology, wish: Wish) -> str`, which gives the whole text with its last newline, and raises
NotUnderstood, Absent or (for a fabric file) ConfigInvalid, with a next step, where the graph or the wish lacks what the
form cannot do without; and a docstring that says who reads it and which document defines it. `gpuguard topo --format`
takes the name of the file, with - for _. What a form cannot know it leaves out or says in a comment, and never invents.
Proof beside it: a golden output of a recorded machine.
"""

import msgspec


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What whoever asks can say of the form.

    `node` is the machine's name in the scheduler, None where nobody gave one; `fabric` the text of a fabric file.
    """

    node: str | None = None
    fabric: str | None = None
