"""What `gpuguard scan` prints for one log that mixes every form and every kind.

`pytest --rewrite` writes the files anew; read the difference.
"""

import json
from pathlib import Path

import pytest

from gpuguard.cli import run
from tests.support.kernel_lines import FIXTURES, cases, kinds
from tests.support.shared_data import shared

HERE = Path(__file__).parent


def _mixed() -> str:
    forms = "".join(path.read_text() for path in sorted((FIXTURES / "forms").glob("*.log")))
    return forms + "".join(f"{case.log}\n" for kind in kinds() for case in cases(kind))


@pytest.mark.parametrize(("options", "golden"), [(["--json"], "scan_mixed.jsonl"), ([], "scan_mixed.txt")])
def test_every_form_and_kind_in_one_file(
    options: list[str],
    golden: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed.log").write_text(_mixed())
    assert run(["scan", *options, "mixed.log"]) == 1
    out = capsys.readouterr().out
    if request.config.getoption("--rewrite", default=False):
        (HERE / golden).write_text(out)
    assert out == (HERE / golden).read_text()


def test_public_corpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every scored record is right, and so are nearly all of its facts."""
    corpus = shared("corpus", "kernel_log.jsonl")
    wrong, told, wanted = [], 0, 0
    for text in corpus.read_text().splitlines():
        record = json.loads(text)
        if "*" in record["ambiguous"]:
            continue
        (tmp_path / "one.log").write_text("\n".join(record.get("lines") or [record["line"]]) + "\n")
        run(["scan", "--json", str(tmp_path / "one.log")])
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        expect = record["expect"]
        if not events:
            wrong += [record["id"]] if "none" not in record["accept_kinds"] else []
            continue
        event = events[0]
        if event["kind"] not in record["accept_kinds"]:
            wrong.append(record["id"])
        if event["kind"] != expect["kind"]:
            continue
        names = [name for name in ("xid", "pci", "pid", "process", "fatal") if name not in record["ambiguous"]]
        wrong += [record["id"]] if any(event[name] != expect[name] for name in names) else []
        facts = {name: value for name, value in expect["detail"].items() if name != "events"}
        wanted += len(facts)
        told += sum(event["detail"].get(name) == value for name, value in facts.items())
    assert wrong == []
    assert told / wanted >= 0.95
