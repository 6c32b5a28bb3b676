"""What every fault code means and what follows from it: the tables of rules/detectors/fault_codes/ as values.

A code is parsed when it is first asked for: the agent meets a handful of them in its life, and has neither the memory
nor the start-up time to hold six hundred. `mistakes` parses everything, for tests and after a site's edit.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar, cast

import msgspec

from gpuguard.detectors.fault_codes.actions import FaultAction
from gpuguard.detectors.fault_codes.nvlink5 import Nvlink5Rule, best, decode
from gpuguard.errors import ConfigInvalid
from gpuguard.model.events import DetailValue, Parsed
from gpuguard.model.findings import Blame, Clear, Remedy, Severity
from gpuguard.model.tables import UNKNOWN, codes_in, lookup_text

__all__ = ["Catalogue", "FaultCode", "Ruling", "load_catalogue", "lookup_text", "parse_entry"]

Family = Literal["xid", "sxid"]
Job = Literal["dies", "lives", "maybe", "unknown"]

T = TypeVar("T")

NVLINK5_XIDS = range(144, 151)
RECOVERY_XID = 154


class Ruling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a line's own words change in its code's entry; None leaves a value as it is.

    `contains` (in any case), `number` (the recovery action of Xid 154) and `above` (any greater one) say when it
    holds; the tables [fatal] and [nonfatal] hold by the printed word and have none of them.
    """

    reason: str
    contains: str | None = None
    number: int | None = None
    above: int | None = None
    severity: Severity | None = None
    action: FaultAction | None = None
    remedy: Remedy | None = None
    second_remedy: Remedy | None = None
    self_evident: bool | None = None
    latched: bool | None = None
    clears: tuple[Clear, ...] | None = None
    rank: int | None = None


class FaultCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One code. The columns are explained at the head of the TOML files.

    `known` is false for a code that has no table. `because` tells which of a line's own words made the entry what it
    is now, empty when only the number counted. `rule` is the NVLink 5 rule its registers matched.
    """

    family: Family
    code: int
    name: str
    meaning: str
    nvidia: str
    nvidia_investigate: str = ""
    severity: Severity
    action: FaultAction
    remedy: Remedy = "none"
    second_remedy: Remedy = "none"
    self_evident: bool = False
    blame: Blame
    job: Job
    clears: tuple[Clear, ...] = ("quiet", "reset", "reboot", "ack")
    latched: bool = False
    quiet_after: float = 3600.0
    rank: int
    consequence: bool = False
    follow: str = ""
    clears_code: int | None = None
    since: str = ""
    until: str = ""
    recovery_since: str = ""
    architectures: str = ""
    source: str
    reading: str = ""
    deviation: str = ""
    variants: tuple[Ruling, ...] = ()
    # NVSwitch only
    recovery: str = ""
    a100: str = ""
    h100: str = ""
    fatal_remedy: Remedy | None = None
    nonfatal: Literal["info"] | None = None
    # added when a line is read
    known: bool = True
    because: str = ""
    rule: Nvlink5Rule | None = None

    @property
    def finding_code(self) -> str:
        """The name of its finding, as `xid79`."""
        return f"{self.family}{self.code}"

    def under(self, ruling: Ruling) -> "FaultCode":
        """The entry as the ruling changes it."""
        changes = {name: value for name in _RULED if (value := getattr(ruling, name)) is not None}
        return msgspec.structs.replace(self, because=ruling.reason, **changes)

    def worded(self, text: str, number: int | None = None) -> "FaultCode":
        """The entry as the text of a line, or the number of a recovery action, changes it: the first variant counts."""
        low = text.lower()
        for variant in self.variants:
            if (
                (variant.contains is not None and variant.contains.lower() in low)
                or (variant.number is not None and variant.number == number)
                or (variant.above is not None and number is not None and number > variant.above)
            ):
                return self.under(variant)
        return self


_RULED = ("severity", "action", "remedy", "second_remedy", "self_evident", "latched", "clears", "rank")


class _Tables(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its text, and how to name it in a mistake."""

    name: str
    text: str

    def table(self, key: int | str) -> dict[str, object] | None:
        """One table, parsed; None when there is none.

        Raises  ConfigInvalid when it is not TOML
        """
        cut = lookup_text(self.text, key)
        if cut is None:
            return None
        try:
            table = tomllib.loads(cut)[str(key)]
        except tomllib.TOMLDecodeError as error:
            raise ConfigInvalid([f"{self.name}: [{key}]: not TOML: {error}; correct the table"]) from error
        return cast(dict[str, object], table)

    def ruling(self, word: str) -> Ruling:
        """The table [fatal] or [nonfatal]."""
        table = self.table(word)
        if table is None:
            raise ConfigInvalid([f"{self.name}: [{word}] is missing; take it from the file that ships with gpuguard"])
        return _convert(table, Ruling, f"{self.name}: [{word}]")


def parse_entry(family: Family, code: int, table: Mapping[str, object], *, known: bool = True) -> FaultCode:
    """The entry that a table describes.

    Raises  ConfigInvalid with file, table, key and what is wrong
    """
    whole = {**table, "family": family, "code": code, "known": known}
    return _convert(whole, FaultCode, f"{family}.toml: [{code if known else UNKNOWN}]")


class Catalogue:
    """Every code by number. Asking for one that has no table gives the entry `unknown`, never an error.

    Raises  ConfigInvalid, from every question, when the table that answers it is broken
    """

    def __init__(self, xid_text: str, sxid_text: str, nvlink5_text: str) -> None:
        self._tables: dict[Family, _Tables] = {
            "xid": _Tables(name="xid.toml", text=xid_text),
            "sxid": _Tables(name="sxid.toml", text=sxid_text),
        }
        self._nvlink5 = _Tables(name="nvlink5.toml", text=nvlink5_text)
        self._entries: dict[tuple[Family, int], FaultCode] = {}
        self._unknowns: dict[Family, FaultCode] = {}
        self._rules: dict[int, tuple[Nvlink5Rule, ...]] = {}
        self._rulings: dict[tuple[str, bool], Ruling] = {}

    def xid(self, code: int) -> FaultCode:
        """The entry of an Xid."""
        return self._entry("xid", code)

    def sxid(self, code: int) -> FaultCode:
        """The entry of an NVSwitch's SXid."""
        return self._entry("sxid", code)

    def codes(self, family: Family) -> tuple[int, ...]:
        """Every code that has a table, in the order of the file."""
        return codes_in(self._tables[family].text)

    def nvlink5_rules(self, xid: int) -> tuple[Nvlink5Rule, ...]:
        """All rules of one of Xid 144 to 150; empty for others."""
        if xid not in self._rules:
            table = self._nvlink5.table(xid) or {}
            where = f"{self._nvlink5.name}: [{xid}]"
            self._rules[xid] = _convert(table.get("rules", []), tuple[Nvlink5Rule, ...], where)
        return self._rules[xid]

    def nvlink5(
        self, xid: int, unit: str | None, registers: Sequence[int], driver: str | None = None, fatal: bool | None = None
    ) -> Nvlink5Rule | None:
        """The rule that the registers of an NVLink 5 line match; None when none does or it contradicts the word."""
        return best(decode(self.nvlink5_rules(xid), registers, unit=unit, driver=driver, fatal=fatal))

    def read(self, parsed: Parsed, text: str = "", driver: str | None = None) -> FaultCode | None:
        """The entry of a line, with all that its own words, number, registers and severity change; None without code.

        Reads   kinds xid, sxid and fm_sxid. `text` is the line; `driver` the version, if known
        """
        if parsed.xid is None:
            return None
        if parsed.kind in ("sxid", "fm_sxid"):
            return self._by_word(self.sxid(parsed.xid), parsed.fatal)
        if parsed.kind != "xid":
            return None
        entry = self.xid(parsed.xid)
        if parsed.xid in NVLINK5_XIDS:
            return self._by_registers(entry, parsed, driver)
        number = parsed.detail.get("to") if parsed.xid == RECOVERY_XID else None
        return entry.worded(text, number if type(number) is int else None)

    def mistakes(self) -> tuple[str, ...]:
        """Everything that is wrong with the tables, parsed as a whole; empty when they are sound."""
        questions: list[Callable[[], object]] = []
        for family in self._tables:
            questions += [partial(self._entry, family, code) for code in self.codes(family)]
            questions.append(partial(self._unknown, family, 0))
        questions += [partial(self.nvlink5_rules, xid) for xid in NVLINK5_XIDS]
        questions += [partial(self._word, tables, fatal) for tables in self._worded_tables for fatal in (True, False)]
        found: list[str] = []
        for question in questions:
            try:
                question()
            except ConfigInvalid as error:
                found += error.mistakes
        return tuple(found)

    @property
    def _worded_tables(self) -> tuple[_Tables, _Tables]:
        return self._tables["sxid"], self._nvlink5

    def _entry(self, family: Family, code: int) -> FaultCode:
        entry = self._entries.get((family, code))
        if entry is None:
            table = self._tables[family].table(code)
            if table is None:
                return self._unknown(family, code)
            entry = self._entries[family, code] = parse_entry(family, code, table)
        return entry

    def _unknown(self, family: Family, code: int) -> FaultCode:
        # The template is kept, not the entry: a hostile log could name a million codes.
        if family not in self._unknowns:
            tables = self._tables[family]
            table = tables.table(UNKNOWN)
            if table is None:
                where = f"{tables.name}: [{UNKNOWN}]"
                raise ConfigInvalid([f"{where} is missing; take it from the file that ships with gpuguard"])
            self._unknowns[family] = parse_entry(family, code, table, known=False)
        return msgspec.structs.replace(self._unknowns[family], code=code)

    def _word(self, tables: _Tables, fatal: bool) -> Ruling:
        key = (tables.name, fatal)
        if key not in self._rulings:
            self._rulings[key] = tables.ruling("fatal" if fatal else "nonfatal")
        return self._rulings[key]

    def _by_word(self, entry: FaultCode, fatal: bool | None) -> FaultCode:
        if fatal is None or (not fatal and entry.nonfatal == "info"):
            return entry
        ruled = entry.under(self._word(self._tables["sxid"], fatal))
        if fatal and entry.fatal_remedy is not None:
            return msgspec.structs.replace(ruled, remedy=entry.fatal_remedy, second_remedy="replace")
        return ruled

    def _by_registers(self, entry: FaultCode, parsed: Parsed, driver: str | None) -> FaultCode:
        unit = parsed.detail.get("unit")
        rule = self.nvlink5(
            entry.code,
            unit if isinstance(unit, str) else None,
            _numbers(parsed.detail.get("regs")),
            driver,
            parsed.fatal,
        )
        ruled = entry if parsed.fatal is None else entry.under(self._word(self._nvlink5, parsed.fatal))
        if rule is None:
            return ruled
        ruled = msgspec.structs.replace(ruled, rule=rule, blame=rule.blame, follow=rule.follow or ruled.follow)
        if parsed.fatal is not False:
            # Fatal: the word has decided. No word: registers alone never drain, as they have two encodings.
            return ruled
        return msgspec.structs.replace(ruled, severity=rule.severity, action=rule.action, remedy=rule.remedy)


def load_catalogue(xid_text: str, sxid_text: str, nvlink5_text: str) -> Catalogue:
    """A catalogue over the three texts; each table is parsed when it is first asked for."""
    return Catalogue(xid_text, sxid_text, nvlink5_text)


def _numbers(value: DetailValue) -> tuple[int, ...]:
    """Registers as printed; those after the first that is not a number are left out."""
    numbers: list[int] = []
    for word in value if isinstance(value, list) else []:
        try:
            numbers.append(int(str(word), 16))
        except ValueError:
            break
    return tuple(numbers)


def _convert(table: object, kind: type[T], where: str) -> T:
    """The table as a value.

    Raises  ConfigInvalid naming the place and what is wrong there
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigInvalid([f"{where}: {error}; correct the table"]) from error
