"""What the agent and the process that reads a dump say to each other: one question, one answer."""

import msgspec

from gpuguard.model.flight import FlightSummary


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was looked at: what is opened must be the same one, of the same owner, of the same size.

    Units   modified: nanoseconds since 1970
    """

    path: str
    device: int
    inode: int
    owner: int
    size: int
    modified: int

    def is_same(self, other: "File | None") -> bool:
        """Whether nothing happened to it since, by whatever path it is reached."""
        return other is not None and msgspec.structs.replace(self, path=other.path) == other


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """The dump was understood."""

    summary: FlightSummary


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The dump was not; `why` says it in words of ours alone."""

    why: str


Answer = Read | Refused
ANSWERS = msgspec.json.Decoder(Answer)
FILES = msgspec.json.Decoder(File)
