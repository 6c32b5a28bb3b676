"""Arguments in, exit code out; the last guard against our own crash.

Only the module of the command that was asked for is imported: hooks start this program on every job.
Exit codes  0 to 3 for `check`, 0 to 2 for the rest, 64 usage error, 70 our own crash.
"""

import sys
from typing import NoReturn

from gpuguard.commands import COMMANDS, module_of

USAGE_ERROR = 64
OWN_CRASH = 70
INTERRUPTED = 130
HELP_WIDTH = 80


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

    `check --mode prolog|epilog|health` turns both into 0 and `check --format nagios` into 3, even when the rest of
    the line could not be understood.
    """
    if argv[:1] != ["check"] or code not in (USAGE_ERROR, OWN_CRASH, INTERRUPTED):
        return code
    line = " ".join(argv).replace("=", " ")
    if any(f"--mode {mode}" in line for mode in ("prolog", "epilog", "health")):
        return 0
    return 3 if "--format nagios" in line else code


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

    from gpuguard.errors import GpuguardError

    class Parser(argparse.ArgumentParser):
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
        description=module.__doc__,
        epilog=f"example: {module.EXAMPLE}",
        formatter_class=Help,
        allow_abbrev=False,
    )
    module.arguments(parser)
    args = parser.parse_args(rest)
    try:
        return int(module.run(args))
    except GpuguardError as error:
        sys.stderr.write(f"gpuguard {name}: {error}\n")
        return error.exit_code


def main() -> NoReturn:
    """Ends the process with the command's exit code."""
    argv = sys.argv[1:]
    try:
        code = run(argv)
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else USAGE_ERROR
    except BrokenPipeError:
        # The reader went away (`| head`): not an error. Python would complain again when it closes the stream.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last guard: whatever it is, the exit code must be the promised one
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"gpuguard: crashed with {type(error).__name__}: {error} ({where.filename}:{where.lineno}); "
            "this is a bug, please report it with `gpuguard support-bundle`\n"
        )
        code = OWN_CRASH
    raise SystemExit(softened(argv, code))


if __name__ == "__main__":
    main()
