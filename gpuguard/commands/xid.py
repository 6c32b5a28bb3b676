"""What is Xid N, who is to blame, what happens, what clears it?

Answers offline from the catalogue that the agent decides by.
Exit codes  0 known, 1 unknown code or registers that match no rule, 64 usage error
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from gpuguard.detectors._explain import complete, every_code, explained, listed, look_up, words_of
from gpuguard.runtime.assets import read_text

if TYPE_CHECKING:
    from gpuguard.detectors.fault_codes.nvlink5 import Nvlink5Rule

EXAMPLE = "gpuguard xid explain 79"

FILES = ("rules", "detectors", "fault_codes")
NVLINK5 = range(144, 151)
USAGE_ERROR = 64


def arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "question", choices=("explain", "list"), metavar="explain|list", help="explain one code, or list all"
    )
    parser.add_argument("code", nargs="?", type=_code, metavar="N", help="the Xid's number")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--registers", nargs="+", type=_register, metavar="0x..", help="Xid 144 to 150: the registers in the line"
    )
    parser.add_argument("--unit", help="Xid 144 to 150: the unit in the line, as NETIR_LINK_EVT")
    parser.add_argument("--driver", help="Xid 144 to 150: the driver's version, as 570.86")
    parser.add_argument("--word", choices=("fatal", "nonfatal"), help="Xid 144 to 150: the word in the line")


def run(args: Namespace) -> int:
    """Prints the answer."""
    if args.question == "list":
        return _list(args.json)
    if args.code is None:
        sys.stderr.write("gpuguard xid: explain needs the number; example: " + EXAMPLE + "\n")
        return USAGE_ERROR
    if args.registers and args.code not in NVLINK5:
        sys.stderr.write("gpuguard xid: --registers belongs to Xid 144 to 150; leave it out for others\n")
        return USAGE_ERROR
    table, known = look_up("xid", read_text(*FILES, "xid.toml"), args.code)
    rules = _decoded(args) if args.registers else ()
    words = words_of(read_text(*FILES, "nvlink5.toml")) if args.code in NVLINK5 else {}
    if args.json:
        import json

        answer = complete("xid", args.code, table, known=known) | {"words": words or None}
        if args.registers:
            answer["rules"] = [_as_json(rule) for rule in rules]
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(explained("xid", args.code, table, known=known, words=words))
        if args.registers:
            sys.stdout.write("\n" + _told(rules))
    return 0 if known and (rules or not args.registers) else 1


def _code(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is no code; a code is a whole number, as in `{EXAMPLE}`")
    return int(text)


def _list(as_json: bool) -> int:
    rows = every_code(read_text(*FILES, "xid.toml"))
    if as_json:
        import json

        sys.stdout.write(json.dumps([complete("xid", code, table, known=True) for code, table in rows]) + "\n")
    else:
        sys.stdout.write(listed(rows))
    return 0


def _register(text: str) -> int:
    return int(text, 16)


def _decoded(args: Namespace) -> "tuple[Nvlink5Rule, ...]":
    from gpuguard.detectors.fault_codes.catalogue import load_catalogue
    from gpuguard.detectors.fault_codes.nvlink5 import decode

    catalogue = load_catalogue("", "", read_text(*FILES, "nvlink5.toml"))
    fatal = None if args.word is None else args.word == "fatal"
    return decode(catalogue.nvlink5_rules(args.code), args.registers, unit=args.unit, driver=args.driver, fatal=fatal)


def _as_json(rule: "Nvlink5Rule") -> object:
    import msgspec

    return msgspec.to_builtins(rule)


def _told(rules: "tuple[Nvlink5Rule, ...]") -> str:
    if not rules:
        return "registers     match no rule; the word in the line, Fatal or Nonfatal, decides\n"
    told = (
        []
        if len(rules) == 1
        else [f"registers     match {len(rules)} rules; --unit, --driver and --word tell them apart"]
    )
    for rule in rules:
        encoding = "V1, before R575" if rule.encoding == "v1" else "V2, R575 and newer"
        told += [
            f"registers     {' or '.join(rule.units)}, {'fatal' if rule.fatal else 'not fatal'} (encoding {encoding})",
            f"  to blame    {rule.blame}",
            f"  gpuguard    {rule.severity}, {rule.action}, remedy {rule.remedy}",
            f"  NVIDIA      {rule.nvidia}, then {rule.nvidia_investigate}",
            f"  here        {rule.local or 'nothing more'}",
            f"  far side    {rule.remote or 'nothing'}",
        ]
        if rule.resets:
            told.append("  reset       the bit above the unit's is set: NVIDIA asks for a reset of the GPU")
    return "\n".join(told) + "\n"
