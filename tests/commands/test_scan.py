"""`attnx scan`: the Parquet file, the summary, and what is said of mistakes."""

from pathlib import Path

import pyarrow.parquet as parquet

from tests.commands.conftest import Run


def test_scan(attnx: Run, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("The animal was tired.\n\nIt slept.\n", encoding="utf-8")
    done = attnx("scan", "c.txt", "-o", "o.parquet", "--json")
    assert done.document["schema"] == "attnx/scan"
    assert (done.document["texts"], done.document["kept"]) == (2, 0)
    rows = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert len(rows) == 2 * 6 * 12
    of_head = [row["entropy"] for row in rows if (row["layer"], row["head"]) == ("L2", 5)]
    summary = next(m for m in done.document["summary"] if m["name"] == "entropy")
    assert abs(summary["values"][2][5] - sum(of_head) / 2) < 1e-6
    assert {row["line"] for row in rows} == {1, 3}
    assert "wrote o.parquet" in done.err
    assert "o.parquet exists" in attnx("scan", "c.txt", "-o", "o.parquet", code=2).err
    shown = attnx("scan", "c.txt", "-o", "o.parquet", "--force").out
    assert shown.splitlines()[0] == "entropy"


def test_mistakes(attnx: Run, tmp_path: Path) -> None:
    assert "nothing to read at none.txt" in attnx("scan", "none.txt", "-o", "o.parquet", code=4).err
    (tmp_path / "c.txt").write_text("\n\n", encoding="utf-8")
    assert "no text in the corpus" in attnx("scan", "c.txt", "-o", "o.parquet", code=4).err
    (tmp_path / "d.txt").write_text("one\n", encoding="utf-8")
    assert "scan measures no 'x'" in attnx("scan", "d.txt", "-o", "p.parquet", "--measure", "x", code=2).err
