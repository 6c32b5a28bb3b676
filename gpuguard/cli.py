"""Arguments in, exit code out; the last guard against our own crash.

Only the module of the command that was asked for is imported: hooks start this program on every job. A hook's standard
streams may be closed or on a full disk: what cannot be complained of is no error, what cannot be answered is one.
Exit codes  0 to 3 for `check`, 0 to 2 for the rest, 64 usage error, 70 our own crash.
"""

import contextlib
import os
import sys
from typing import NoReturn, TextIO, cast

from gpuguard.commands import COMMANDS, module_of
from gpuguard.errors import GpuguardError, OutputFailed

USAGE_ERROR = 64
OWN_CRASH = 70
INTERRUPTED = 130
UNKNOWN = 3
HELP_WIDTH = 80
HOOKS = ("prolog", "epilog", "health")


def _listing() -> str:
    width = max(len(name) for name in COMMANDS)
    rows = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items())
    return (
        "usage: gpuguard COMMAND [OPTIONS]\n\n"
        "Notices a failing GPU, says why, and takes the node out of service.\n\n"
        f"commands:\n{rows}\n\n"
        "example: gpuguard check\n"
        "`gpuguard COMMAND --help` tells more of each; `gpuguard --version` the version.\n"
    )


def softened(argv: list[str], code: int) -> int:
    """The exit code after what a hook's mode promises: a usage error or a crash of ours never drains a node.

    Of `check --mode prolog|epilog` nothing but a verdict's 2 is left, of `check --mode health` nothing at all, and
    `check --format nagios` knows 0 to 3, even when the rest of the line could not be understood.
    """
    if argv[:1] != ["check"]:
        return code
    mode = _last_of(argv, "--mode")
    if mode in HOOKS:
        return 2 if code == 2 and mode != "health" else 0
    return UNKNOWN if code not in range(4) and _last_of(argv, "--format") == "nagios" else code


def _last_of(argv: list[str], option: str) -> str:
    """What the option says, however the line goes on; '' when it is not there."""
    from itertools import pairwise

    words = " ".join(argv).replace(f"{option}=", f"{option} ").split(" ")
    values = [value for name, value in pairwise(words) if name == option]
    return values[-1] if values else ""


def run(argv: list[str]) -> int:
    """Exit code of the command line."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_listing())
        return 0 if argv else USAGE_ERROR
    if argv[0] == "--version":
        from gpuguard import __version__

        sys.stdout.write(f"gpuguard {__version__}\n")
        return 0
    if argv[0] not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean `gpuguard {near[0]}`?" if near else "`gpuguard --help` lists the commands."
        sys.stderr.write(f"gpuguard: no command {argv[0]!r}; {hint}\n")
        return USAGE_ERROR
    return _run_command(argv[0], argv[1:])


def _run_command(name: str, rest: list[str]) -> int:
    import argparse

    class Parser(argparse.ArgumentParser):
        def format_help(self) -> str:
            self.description = refilled(module.__doc__ or "")
            return super().format_help()

        def error(self, message: str) -> NoReturn:
            sys.stderr.write(f"{self.prog}: {message}; `{self.prog} --help` shows the options\n")
            raise SystemExit(USAGE_ERROR)

    class Help(argparse.RawDescriptionHelpFormatter):
        # A width of our own: asking the terminal imports shutil and all its compressors for every option declared.
        def __init__(self, prog: str) -> None:
            super().__init__(prog, width=HELP_WIDTH)

    module = module_of(name)
    parser = Parser(
        prog=f"gpuguard {name}",
        epilog=f"example: {module.EXAMPLE}",
        formatter_class=Help,
        allow_abbrev=False,
    )
    module.arguments(parser)
    args = parser.parse_args(rest)
    try:
        return int(module.run(args))
    except OutputFailed:
        raise
    except GpuguardError as error:
        sys.stderr.write(f"gpuguard {name}: {printable(str(error))}\n")
        return error.exit_code


def printable(text: str) -> str:
    """What a terminal does not obey: a file's name in an error may carry any character."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def refilled(text: str) -> str:
    """The docstring as a terminal wants it: its paragraphs at HELP_WIDTH, its indented blocks as they are.

    A line of its own, as in `Exit code 0: ...`, begins with these words or with a word and two spaces.
    """
    import re

    parts: list[list[str]] = []
    for line in map(str.rstrip, text.strip().splitlines()):
        before = parts[-1] if parts else [""]
        block = line.startswith(" ") and not _hanging(before)
        if not line or block or before[0][:1] in ("", " ") or re.match(r"Exit codes?\b|[A-Z]\w*(?: \w+)?  ", line):
            parts.append([line])
        else:
            before.append(line.strip())
    return "\n".join(part[0] if part[0][:1] in ("", " ") else _wrapped(part) for part in parts)


def _wrapped(part: list[str]) -> str:
    import textwrap

    indent = " " * _hanging(part)
    return textwrap.fill("\n".join(part), HELP_WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _hanging(part: list[str]) -> int:
    """How far the text of `Exit codes  0 ...` stands from the margin; 0 for prose."""
    head, gap, rest = part[0].partition("  ")
    return len(part[0]) - len(rest.lstrip()) if head.strip() and gap else 0


class _Stream:
    """A standard stream, or None where the process was started without it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        """Whether a person sees it."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class _Output(_Stream):
    """Standard output: what it does not take raises OutputFailed, and a reader that went away BrokenPipeError.

    After that nothing is written any more, so that the interpreter has nothing left to complain of when it ends.
    """

    _lost = False

    def write(self, text: str) -> int:
        """The text is taken."""
        if self._stream is None:
            raise _failed("it is closed")
        if not self._lost:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Everything is out."""
        if self._stream is not None and not self._lost:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> NoReturn:
        self._lost = True
        if isinstance(error, BrokenPipeError):
            raise error
        raise _failed(error.strerror or str(error)) from error


class _Complaints(_Stream):
    """Standard error: what it does not take is lost, and that is all; a daemon's disk may have room again later."""

    def write(self, text: str) -> int:
        """The text is taken, or lost."""
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """What could be written is out."""
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.flush()


def _failed(why: str) -> OutputFailed:
    return OutputFailed(f"standard output cannot be written: {why}; give it a reader, or a file with room")


def _guard_streams() -> None:
    """The standard streams are ours, and no file that is opened from now on gets the number of one that is closed."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is None:
            number = os.open(os.devnull, os.O_RDWR)
            if number > 2:
                os.close(number)
    sys.stdout = cast(TextIO, _Output(sys.stdout))
    sys.stderr = cast(TextIO, _Complaints(sys.stderr))


def _outcome(argv: list[str]) -> int:
    """The exit code, whatever happens."""
    try:
        try:
            code = run(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else USAGE_ERROR
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return 0  # the reader went away (`| head`): not an error
    except OutputFailed as error:
        sys.stderr.write(f"gpuguard: {error}\n")
        # `check` has no 2 that is not a verdict.
        return UNKNOWN if argv[:1] == ["check"] else error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last guard: whatever it is, the exit code must be the promised one
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"gpuguard: crashed with {type(error).__name__}: {error} ({where.filename}:{where.lineno}); "
            "this is a bug, please report it with `gpuguard support-bundle`\n"
        )
        return OWN_CRASH


def main() -> NoReturn:
    """Ends the process with the command's exit code."""
    argv = sys.argv[1:]
    _guard_streams()
    raise SystemExit(softened(argv, _outcome(argv)))


if __name__ == "__main__":
    main()
