"""Tables are found by their words, each with its place in the text."""

from gpuguard.topology.printed import MOST_TABLES, Table, tables, tail, without_escapes

TEXT = "before\n\tGPU0\tmlx5_0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-3\t\tN/A\nmlx5_0\tPIX\t X \t\t\nafter\n"


def _one(text: str) -> Table:
    (table,) = tables(text)
    return table


def test_words_are_where_they_stand() -> None:
    table = _one(TEXT)
    assert (table.line, table.names, table.headings) == (2, ["GPU0", "mlx5_0"], ["cpus", "nodes"])
    row = table.rows["GPU0"]
    assert [word.text for word in row.words] == ["X", "PIX", "0-3", "", "N/A"]
    assert all(TEXT[word.start : word.end] == word.text for word in row.words)
    assert {kind: word.text for kind, word in (tail(table, row, row.words[2:], TEXT) or {}).items()} == {
        "cpus": "0-3", "nodes": "N/A",
    }  # fmt: skip


def test_a_word_that_a_line_broke_knows_where() -> None:
    text = "GPU0 GPU1 CPU Affinity\nGPU0 X NV1\n2 0-3\nGPU1 NV12 X 0-3,\n8-11\n"
    table = _one(text)
    assert [word.text for word in table.rows["GPU0"].words] == ["X", "NV12", "0-3"]
    word = table.rows["GPU0"].words[1]
    ((place, begin, end),) = word.cuts
    assert (word.text[:place], text[begin:end], word.text[place:]) == ("NV1", "\n", "2")
    assert table.rows["GPU1"].words[-1].text == "0-3,8-11"


def test_what_the_words_tell() -> None:
    assert _one(TEXT).says == "distances"
    assert _one("\tGPU0\tGPU1\nGPU0\tX\tCNS\n").says == "statuses"
    assert _one("\tGPU0\t\n GPU0\tX\t\n").says == ""


def test_escapes_are_taken_out_and_kept_with_their_places() -> None:
    assert without_escapes("plain") == ("plain", [])
    assert without_escapes("a\x1b[4mb\x1b[0;1mc\x1b(B") == ("abc", [(1, "\x1b[4m"), (2, "\x1b[0;1m"), (3, "\x1b(B")])


def test_a_text_of_headers_alone_comes_to_an_end() -> None:
    found = list(tables("GPU0 GPU1\n\n" * (MOST_TABLES + 5)))
    assert len(found) == MOST_TABLES
    assert found[-1].line == 2 * MOST_TABLES - 1
