"""The shipped tables, every one: complete, sound, and each deviation from NVIDIA's bucket on purpose."""

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuguard.detectors import _explain
from gpuguard.detectors.fault_codes.actions import BUCKETS, deviates
from gpuguard.detectors.fault_codes.catalogue import NVLINK5_XIDS, FaultCode, Ruling, load_catalogue
from gpuguard.detectors.fault_codes.nvlink5 import decode
from gpuguard.incident import ranks
from gpuguard.model.events import Parsed
from gpuguard.runtime.assets import read_text
from tests.support.shared_data import CHECKOUT, shared

CATALOGUE = load_catalogue(
    *(read_text("rules", "detectors", "fault_codes", name) for name in ("xid.toml", "sxid.toml", "nvlink5.toml"))
)
XIDS = {code: CATALOGUE.xid(code) for code in CATALOGUE.codes("xid")}
SXIDS = {code: CATALOGUE.sxid(code) for code in CATALOGUE.codes("sxid")}
UNKNOWNS = (CATALOGUE.xid(9999), CATALOGUE.sxid(99999))
ENTRIES = (*XIDS.values(), *SXIDS.values(), *UNKNOWNS)
RULES = {xid: CATALOGUE.nvlink5_rules(xid) for xid in NVLINK5_XIDS}

SELF_EVIDENT = {48, 62, 64, 79, 95, 110, 119, 120, 140, 143}
WITH_A_WITNESS = {46, 109, 136, 155, 156, 158, 167, 173}
PROGRAM = {8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 137}


def as_variants(entry: FaultCode) -> list[FaultCode]:
    """The entry, and what each of its variants makes of it."""
    return [entry, *(entry.under(variant) for variant in entry.variants)]


def test_every_table_is_sound() -> None:
    assert CATALOGUE.mistakes() == ()


def test_no_code_stands_twice_or_out_of_order() -> None:
    for family in ("xid", "sxid"):
        codes = CATALOGUE.codes(family)
        assert list(codes) == sorted(set(codes))
    assert list(XIDS) == list(range(1, 178))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.finding_code)
def test_an_entry_is_consistent(entry: FaultCode) -> None:
    assert entry.meaning.endswith(".")
    assert "\n" not in entry.meaning
    for seen in as_variants(entry):
        assert (seen.severity == "critical") == (seen.action == "drain"), "critical is what drains"
        if seen.action == "drain":
            assert seen.remedy in ("reset", "reboot", "replace")
            assert seen.latched
        else:
            assert not seen.self_evident
        if seen.latched:
            assert "quiet" not in seen.clears
        assert "ack" in seen.clears, "a person can always clear it"
        if seen.severity == "info":
            assert seen.action in ("none", "watch")


@pytest.mark.parametrize("entry", [*XIDS.values(), *SXIDS.values()], ids=lambda entry: entry.finding_code)
def test_a_deviation_from_nvidias_bucket_has_its_reason_and_nothing_else_has(entry: FaultCode) -> None:
    assert entry.nvidia in BUCKETS
    assert bool(entry.deviation) == deviates(entry.nvidia, entry.action)


def test_a_deviation_of_an_nvlink5_rule_has_its_reason() -> None:
    for rules in RULES.values():
        for rule in rules:
            assert bool(rule.deviation) == deviates(rule.nvidia, rule.action), rule
            assert rule.fatal == (rule.action == "drain"), "the word decides"


def test_self_evident_are_these_and_no_others() -> None:
    assert {code for code, entry in XIDS.items() if entry.self_evident} == SELF_EVIDENT
    assert {code for code, entry in XIDS.items() if entry.action == "drain"} == SELF_EVIDENT | WITH_A_WITNESS
    assert not any(entry.self_evident or entry.action == "drain" for entry in SXIDS.values()), "only the word drains"


@pytest.mark.parametrize("code", sorted(PROGRAM))
def test_program_faults_never_drain(code: int) -> None:
    assert all(seen.action in ("none", "watch") for seen in as_variants(XIDS[code]))


def test_consequences_and_pairs() -> None:
    assert {code for code, entry in XIDS.items() if entry.consequence} == {45, 171, 172}
    assert {code: entry.clears_code for code, entry in XIDS.items() if entry.clears_code} == {162: 163}
    assert XIDS[79].rank == max(entry.rank for entry in ENTRIES)


@pytest.mark.parametrize("code", sorted(SXIDS))
def test_the_word_fatal_drains_a_switch_and_no_other_does(code: int) -> None:
    for fatal, action in ((True, {"drain"}), (False, {"none", "watch"}), (None, {"none", "watch"})):
        entry = CATALOGUE.read(Parsed(kind="sxid", xid=code, fatal=fatal))
        assert entry is not None
        assert entry.action in action
        assert entry.self_evident is (fatal is True)


def test_the_explanation_knows_every_default_and_word() -> None:
    left_out = {"family", "code", "known", "because", "rule"}
    fields = {field.encode_name: field for field in msgspec.structs.fields(FaultCode)}
    defaults = {name: field.default for name, field in fields.items() if not field.required and name not in left_out}
    shown = {name: tuple(value) if isinstance(value, list) else value for name, value in _explain.DEFAULTS.items()}
    assert shown == defaults
    assert {entry.follow for entry in ENTRIES} - {""} <= set(_explain.FOLLOWS)
    assert {entry.recovery for entry in SXIDS.values()} <= set(_explain.RECOVERIES)
    assert {entry.a100 for entry in SXIDS.values()} | {entry.h100 for entry in SXIDS.values()} <= set(_explain.REPORTED)
    assert {variant.reason for entry in ENTRIES for variant in entry.variants}.isdisjoint({""})
    assert {field.name for field in msgspec.structs.fields(Ruling)} > {"contains", "number", "above"}


def test_a_lookup_imports_no_more_than_it_needs() -> None:
    """`xid explain` may cost six starts of an interpreter: importing msgspec alone would cost three."""
    program = (
        "import sys; before = set(sys.modules); from gpuguard.cli import run; "
        "assert run(['xid', 'explain', '79']) == 0; "
        "new = set(sys.modules) - before; print(sorted({'msgspec', 'dataclasses', 'inspect', 'json', 'pathlib'} & new))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_reference_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "docs" / "generate_fault_codes.py"), "--check"],
        capture_output=True, text=True, check=False, cwd=CHECKOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def rows_of(name: str) -> list[dict[str, str]]:
    with Path(shared("corpus", name)).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_published_xid_has_its_entry_with_the_published_bucket() -> None:
    for row in rows_of("xid_catalog_facts.csv"):
        entry = XIDS[int(row["xid"])]
        assert entry.nvidia == row["immediate_action"], row["xid"]
        assert entry.name in (row["mnemonic"], row["mnemonic"].split(" / ")[0], "not named")
        if row["drain_hint"] == "drain":
            assert entry.action == "drain" or entry.code == 169, row["xid"]


def test_every_published_sxid_has_its_entry() -> None:
    rows = rows_of("sxid_catalog_facts.csv")
    assert {int(row["sxid"]) for row in rows} == set(SXIDS)
    for row in rows:
        entry = SXIDS[int(row["sxid"])]
        assert entry.name in (row["mnemonic"], "not named")
        assert (entry.nvidia in ("fatal", "always fatal")) == (row["fm_guide"] in ("fatal", "always fatal"))


def test_every_published_nvlink5_row_has_its_rule() -> None:
    rows = rows_of("nvlink5_decode_facts.csv")
    assert len(rows) == sum(map(len, RULES.values()))
    for row in rows:
        registers = [(int(row["reg1_bits_25_20"], 2) << 20) | int(row["v1_low_bits"], 2)]
        if row["reg2_error_status"] != "any":
            registers.append(int(row["reg2_error_status"].split("/")[0], 16))
        unit = row["unit"].split("/")[-1].replace(" ", "_")
        fatal = "Non" not in row["severity"]
        fitting = decode(RULES[int(row["xid"])], registers, unit=unit, fatal=fatal, driver="570.1")
        assert [rule.nvidia for rule in fitting] == [row["immediate_action"]], row


def test_every_real_nvlink5_line_matches_one_rule_with_the_word_it_prints() -> None:
    lines = [json.loads(line) for line in shared("corpus", "kernel_log.jsonl").read_text().splitlines()]
    real = [
        record["expect"]
        for record in lines
        if record["provenance"] in ("field", "data-file")
        and record["expect"].get("xid") in NVLINK5_XIDS
        and record["expect"]["detail"].get("regs")
    ]
    assert len(real) >= 10
    for expect in real:
        detail = expect["detail"]
        registers = [int(word, 16) for word in detail["regs"]]
        for fatal in (None, expect["fatal"]):
            fitting = decode(RULES[expect["xid"]], registers, unit=detail["unit"], fatal=fatal)
            assert [rule.fatal for rule in fitting] == [expect["fatal"]], detail


def test_the_catalogue_and_the_incidents_agree_on_what_is_the_cause() -> None:
    lines = [[int(code[3:]) for code in codes if code.startswith("xid")] for codes in ranks.ORDER]
    told = [[CATALOGUE.xid(code).rank for code in codes] for codes in lines if codes]
    for stronger, weaker in itertools.pairwise(told):
        assert min(stronger) > max(weaker)
