"""A code's table, found and told to a person in 80 columns, or as JSON values.

Not a detector: it stands beside the one whose tables it tells, because importing that one costs three starts of an
interpreter and `xid explain` may cost six in all. It works on a table as TOML gives it.
"""

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from gpuguard.errors import ConfigInvalid
from gpuguard.model.tables import UNKNOWN, lookup_text

WIDTH = 80
LABEL = 14

# Any: a TOML table mixes types; the catalogue's Structs check them, and a test holds every shipped table to those.
Table = Mapping[str, Any]

# What a table leaves out where it is the usual. A test holds these to the defaults of FaultCode.
DEFAULTS: dict[str, Any] = {  # Any: as above
    "nvidia_investigate": "", "remedy": "none", "second_remedy": "none", "self_evident": False,
    "clears": ["quiet", "reset", "reboot", "ack"], "latched": False, "quiet_after": 3600.0, "consequence": False,
    "follow": "", "clears_code": None, "since": "", "until": "", "recovery_since": "", "architectures": "",
    "reading": "", "deviation": "", "variants": [], "recovery": "", "a100": "", "h100": "", "fatal_remedy": None,
    "nonfatal": None,
}  # fmt: skip

JOBS = {
    "dies": "dies",
    "lives": "goes on",
    "maybe": "may die; the text and what follows tell",
    "unknown": "not known",
}
ACTIONS = {
    "none": "counts it and does nothing else",
    "watch": "warns, counts it and looks closer when it repeats; the node keeps its jobs",
    "test": "warns and asks for a test when the GPU is idle; the node keeps its jobs",
    "drain": "drains the node",
}
WATCHED_QUIETLY = "counts it and looks closer when it repeats on one GPU; no warning, the node keeps its jobs"
REMEDIES = {
    "none": "nothing",
    "test": "a test",
    "reset": "a reset of the GPU",
    "reboot": "a reboot of the node",
    "replace": "a new part",
}
CLEARS = {
    "quiet": "silence for {hours:g} h",
    "reset": "a reset of the GPU",
    "reboot": "a reboot",
    "replace": "a new part",
    "ack": "`gpuguard ack {name}` by a person",
}
FOLLOWS = {
    "xid154": "Xid 154 on the same GPU, if it follows, has the last word.",
    "registers": "The registers in the line say which event it was.",
    "xid48": "Xid 48 on the same GPU decides.",
    "number": "The number after `to` in the line decides.",
    "gpu_lost": "A GPU lost seconds before is the cause, if there is one.",
}
RECOVERIES = {
    "port": "reset the GPU on that port or restart its guest; on a trunk port every partition that uses trunk links",
    "host": "restart the host, or reset all GPUs and switches together",
    "link": "look at the link and its seating when it repeats",
    "ignore": "ignore it",
    "none": "nothing; a job may fail",
    "word": "nothing beyond the word in the line",
}
REPORTED = {
    "fatal": "fatal", "non-fatal": "non-fatal", "switch": "fatal for the whole switch",
    "run time": "decided at run time", "own text": "without either word", "not raised": "never",
}  # fmt: skip


def table_of(toml_text: str, code: int | str) -> Table | None:
    """The code's table, None when the file has none; the other tables are not even parsed."""
    cut = lookup_text(toml_text, code)
    return None if cut is None else tomllib.loads(cut)[str(code)]


def look_up(family: str, toml_text: str, code: int) -> tuple[Table, bool]:
    """The code's table, or the one for codes that nobody knows; and whether it is known.

    Raises  ConfigInvalid when the file has neither
    """
    if (table := table_of(toml_text, code)) is not None:
        return table, True
    if (table := table_of(toml_text, UNKNOWN)) is not None:
        return table, False
    raise ConfigInvalid([f"{family}.toml: [{UNKNOWN}] is missing; take it from the file that ships with gpuguard"])


def words_of(toml_text: str) -> dict[str, Table | None]:
    """What the printed word decides: the tables [fatal] and [nonfatal]."""
    return {word: table_of(toml_text, word) for word in ("fatal", "nonfatal")}


def every_code(toml_text: str) -> list[tuple[int, Table]]:
    """Each code with its table, in the order of the file."""
    return [(int(code), table) for code, table in tomllib.loads(toml_text).items() if code.isdecimal()]


def complete(family: str, code: int, table: Table, *, known: bool) -> dict[str, Any]:  # Any: a table mixes types
    """Every fact of the entry under one name each, for JSON."""
    return {"family": family, "code": code, "known": known, **DEFAULTS, **table}


def explained(
    family: str, code: int, table: Table, *, known: bool = True, words: Mapping[str, Table | None] | None = None
) -> str:
    """What it is, whose fault, what gpuguard does and why, what ends it, what NVIDIA says.

    `words` are the tables [fatal] and [nonfatal] where the printed word decides.
    Shape   lines of at most 80 columns, each ended by a newline
    """
    entry = complete(family, code, table, known=known)
    label = {"xid": "Xid", "sxid": "SXid"}[family]
    out = [f"{label} {code}  {entry['name']}" if known else f"{label} {code}  (unknown)"]
    out += [*textwrap.wrap(entry["meaning"], WIDTH), ""]
    out += _row("to blame", entry["blame"])
    out += _row("the job", JOBS[entry["job"]])
    out += _row("gpuguard", _deeds(entry))
    for word, ruling in (words or {}).items():
        if ruling is not None:
            out += _row(f"  {word}", _word(entry, word, ruling))
    for variant in entry["variants"]:
        out += _row("  " + _when(variant), _changed(entry, variant, {**entry, **variant}) + f" ({variant['reason']})")
    if entry["deviation"]:
        out += _row("why", entry["deviation"])
    if entry["follow"]:
        out += _row("decided by", FOLLOWS[entry["follow"]])
    out += _row("ended by", _clears(entry))
    out += _row("NVIDIA says", _nvidia(entry))
    if entry["reading"]:
        out += _row("how to read", entry["reading"])
    out += _row("where", _where(entry))
    return "\n".join(out) + "\n"


def listed(rows: Sequence[tuple[int, Table]]) -> str:
    """One line a code: number, severity, action, meaning; 80 columns."""
    lines = []
    for code, table in rows:
        line = f"{code:>5}  {table['severity']:<8}  {table['action']:<5}  {table['meaning']}"
        lines.append(line if len(line) <= WIDTH else line[: WIDTH - 3] + "...")
    return "\n".join(lines) + "\n"


def _row(label: str, text: str) -> list[str]:
    room = WIDTH - LABEL
    first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    head = [f"{label:<{LABEL}}{first}"] if len(label) < LABEL else [label, " " * LABEL + first]
    return head + [" " * LABEL + line for line in rest]


def _deeds(entry: Table) -> str:
    if entry["consequence"]:
        return "attaches it to the fault it follows; alone it " + ACTIONS[entry["action"]]
    quiet = entry["action"] == "watch" and entry["severity"] == "info"
    deed = WATCHED_QUIETLY if quiet else ACTIONS[entry["action"]]
    if entry["action"] == "drain":
        deed += (
            " at once, as it needs no second witness"
            if entry["self_evident"]
            else " when a second witness agrees (NVML, PCI or another log)"
        )
    if entry["remedy"] != "none":
        waits = entry["action"] != "drain" and entry["remedy"] != "replace"
        deed += f"; mended by {REMEDIES[entry['remedy']]}" + (" when idle" if waits else "")
        if entry["second_remedy"] not in ("none", entry["remedy"]):
            deed += f", then by {REMEDIES[entry['second_remedy']]} if it returns"
    return deed


def _word(entry: Table, word: str, ruling: Table) -> str:
    if word == "nonfatal" and entry["nonfatal"] == "info":
        return ACTIONS["none"]
    changed = {**entry, **ruling}
    if word == "fatal" and entry["fatal_remedy"] is not None:
        changed.update(remedy=entry["fatal_remedy"], second_remedy="replace")
    return _changed(entry, ruling, changed)


def _changed(entry: Table, ruling: Table, changed: Table) -> str:
    ends = "" if ruling.get("clears", entry["clears"]) == entry["clears"] else f"; ended by {_clears(changed)}"
    saying = f"with `{ruling['contains']}`: " if "contains" in ruling else ""
    return saying + _deeds(changed) + ends


def _when(variant: Table) -> str:
    if "contains" in variant:
        return "its text"
    return f"to {variant['number']}" if "number" in variant else f"to > {variant['above']}"


def _clears(entry: Table) -> str:
    name = f"{entry['family']}{entry['code']}"
    ways = [CLEARS[way].format(name=name, hours=entry["quiet_after"] / 3600) for way in entry["clears"]]
    end = " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)
    if entry["clears_code"] is not None:
        end += f"; it ends {entry['family']}{entry['clears_code']} on the same GPU itself"
    return end


def _nvidia(entry: Table) -> str:
    if entry["family"] == "sxid":
        return f"{entry['nvidia']}; advice: {RECOVERIES[entry['recovery']]}"
    investigate = entry["nvidia_investigate"]
    later = f", then {investigate}" if investigate not in ("", "not stated", entry["nvidia"]) else ""
    return f"{entry['nvidia']}{later}"


def _where(entry: Table) -> str:
    parts = []
    if entry["family"] == "sxid":
        parts.append(f"A100 switches: {REPORTED[entry['a100']]}; H100 switches: {REPORTED[entry['h100']]}")
    elif entry["architectures"] == "none":
        parts.append("marked unused on data-centre GPUs")
    else:
        parts.append(f"GPUs: {entry['architectures']}")
    if entry["since"]:
        parts.append(f"drivers from {entry['since']}")
    if entry["until"]:
        parts.append(f"up to {entry['until']}")
    if entry["recovery_since"]:
        parts.append(f"Xid 154 follows from {entry['recovery_since']}")
    return "; ".join([*parts, f"source: {entry['source']}"])
