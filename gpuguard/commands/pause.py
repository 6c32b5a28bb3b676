"""Keeps gpuguard's hands off this node for a while: it goes on watching and telling, and writes nothing anywhere.

A drain that is not written yet is taken back, one that stands stays as it is, and nothing is given back either. When
the time is over, what was seen before and not since has to be seen again before anything follows from it.

Goes through the running agent; without one this command writes it down itself.
Exit codes  0 it is so, 1 nothing was paused (--end), 2 it could not be written down, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuguard.ports import Actuator, Clock

EXAMPLE = "gpuguard pause --for 4h --reason 'cables are being changed'"

UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    from gpuguard.runtime.known import options

    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--for", dest="seconds", metavar="TIME", type=_span, help="how long: 30m, 4h, 2d; at most 30d")
    how.add_argument("--end", action="store_true", help="from now on gpuguard may act again")
    parser.add_argument("--reason", metavar="TEXT", help="why; kept in the history (needed with --for)")
    parser.add_argument("--by", metavar="NAME", help="who asks (default: the user who calls)")
    options(parser)


def run(args: Namespace) -> int:
    """Pauses, or ends the pause."""
    from pathlib import Path

    from gpuguard.runtime.clock import SystemClock

    return answer(args, SystemClock(Path(args.root)))


def answer(args: Namespace, clock: "Clock", *, target: "Actuator | None" = None) -> int:
    """The same by a clock that is given.

    Raises  UsageError; ActionRefused when the agent would not take it; StoreFailed, ReadFailed when it cannot be
            written down
    """
    from gpuguard.errors import StoreFailed, UsageError
    from gpuguard.runtime.assembly import assemble
    from gpuguard.runtime.control import Word
    from gpuguard.runtime.known import config_path, look_up, state_dir
    from gpuguard.runtime.person import UNWRITTEN, must_say_something, name_of_caller, speak

    must_say_something(args)
    if not args.end and args.reason is None:
        raise UsageError("--for needs a --reason: whoever finds the node unattended has to know why")
    folder = state_dir(args)
    known = look_up(folder, clock)
    try:
        before = known.memory()[1].pause
    finally:
        known.close()
    word = Word(
        verb="unpause" if args.end else "pause", by=args.by or name_of_caller(), reason=args.reason or "ended",
        seconds=args.seconds,
    )  # fmt: skip
    parts = assemble(config_path(args), with_sources=False)
    told = speak(folder, parts, word, alive=known.alive, clock=clock, target=target)
    after = look_up(folder, clock)
    try:
        health = after.memory()[1]
    finally:
        after.close()
    if (health.pause is None) is not args.end:
        raise StoreFailed(UNWRITTEN)
    if args.json:
        import json

        facts = {
            "paused": health.pause is not None, "by": word.by, "reason": word.reason, "seconds": args.seconds,
            "was_paused": before is not None, "drain": health.drain.state if health.drain else None,
        }  # fmt: skip
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        from gpuguard.runtime.words import page, paragraph, span

        drain = health.drain
        if args.end:
            text = "gpuguard may act on this node again." if before else "Nothing was paused."
        else:
            text = f"gpuguard keeps its hands off this node for {span(args.seconds)} ({told.message})."
            if drain is not None and drain.state == "standing":
                text += f" Its drain {drain.token} stays as it is: {drain.reason}"
            elif drain is not None and drain.state == "owed":
                text += f" Its drain {drain.token}, which is not known to stand, is decided on afterwards."
        sys.stdout.write(page(paragraph(text)))
    return 1 if args.end and before is None else 0


def _span(text: str) -> float:
    """Seconds.

    Shape   a number and one of m, h, d
    """
    number, unit = text[:-1], text[-1:]
    if unit not in UNITS or not number.replace(".", "", 1).isdigit() or not number.isascii():
        raise ArgumentTypeError(f"{text!r} is no time; write 30m, 4h or 2d")
    seconds = float(number) * UNITS[unit]
    if not 0.0 < seconds <= 30 * 86400.0:
        raise ArgumentTypeError(f"{text} is out of range; a pause lasts more than 0 and at most 30d")
    return seconds
