"""The classes of failure, by who acts next.

Each class carries the exit code a command ends with when the error reaches `cli.py`. The message of every
error is for a person and names the next step.
"""


class GpuguardError(Exception):
    """Anything gpuguard raises on purpose."""

    exit_code = 2


class Absent(GpuguardError):
    """This machine has no such thing: skip it and report it as absent."""


class ReadFailed(GpuguardError):
    """Asked, and no answer came: supervision retries with back-off, the subjects become unknown."""


class ReadRefused(ReadFailed):
    """Asked, and told no: asking again does not help before a person has done what the message says."""


class NotUnderstood(GpuguardError):
    """An answer came in a form we do not know: keep the bytes, count it, never guess."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class ConfigInvalid(GpuguardError):
    """A person must edit a file. Lists every mistake at once."""

    def __init__(self, mistakes: "tuple[str, ...] | list[str]") -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


class ActionDeferred(GpuguardError):
    """The target said later.

    Units   retry_after: seconds
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ActionRefused(GpuguardError):
    """The target said no: tell a person, do not try again by ourselves."""


class StoreFailed(GpuguardError):
    """The durable memory could not be read or written: nothing is acted on until it can."""


class InvariantBroken(GpuguardError):
    """Our own bug: carry the story, stop, let systemd restart."""

    exit_code = 70


class UsageError(GpuguardError):
    """What was typed cannot be understood: the message says what can be."""

    exit_code = 64


class OutputFailed(GpuguardError):
    """Standard output cannot be written: whoever reads it, or the disk behind it, must be mended."""
