"""What is an NVSwitch's SXid N, who is to blame, what happens, what clears it?

Answers offline from the catalogue that the agent decides by. The word in the line, Fatal or Non-fatal, decides.
Exit codes  0 known, 1 unknown code, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from gpuguard.detectors._explain import complete, every_code, explained, listed, look_up, words_of
from gpuguard.runtime.assets import read_text

EXAMPLE = "gpuguard sxid explain 20034"

FILE = ("rules", "detectors", "fault_codes", "sxid.toml")
USAGE_ERROR = 64


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "question", choices=("explain", "list"), metavar="explain|list", help="explain one code, or list all"
    )
    parser.add_argument("code", nargs="?", type=_code, metavar="N", help="the SXid's number")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace) -> int:
    """Prints the answer."""
    text = read_text(*FILE)
    if args.question == "list":
        return _list(text, args.json)
    if args.code is None:
        sys.stderr.write("gpuguard sxid: explain needs the number; example: " + EXAMPLE + "\n")
        return USAGE_ERROR
    table, known = look_up("sxid", text, args.code)
    words = words_of(text)
    if args.json:
        import json

        sys.stdout.write(json.dumps(complete("sxid", args.code, table, known=known) | {"words": words}) + "\n")
    else:
        sys.stdout.write(explained("sxid", args.code, table, known=known, words=words))
    return 0 if known else 1


def _code(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is no code; a code is a whole number, as in `{EXAMPLE}`")
    return int(text)


def _list(text: str, as_json: bool) -> int:
    rows = every_code(text)
    if as_json:
        import json

        sys.stdout.write(json.dumps([complete("sxid", code, table, known=True) for code, table in rows]) + "\n")
    else:
        sys.stdout.write(listed(rows))
    return 0
