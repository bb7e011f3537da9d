from __future__ import annotations

import csv
import os
import re
import stat
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from attnx.cli.wording import worded
from attnx.errors import RunError, UsageError
from attnx.feed.arrays import check_target, write_whole
from attnx.paths import resolved
from attnx.view.heatmap import heatmap
from attnx.view.matrix import Matrix, of_attention
from attnx.view.save import LOOKS, NUMBERS, look, save, write, writing
from tests.view import samples
from tests.view.scenes import SCENES
from tests.view.screen import plain


def made(pieces: list[str] = samples.WIDE) -> Matrix:
    trace = samples.trace(pieces, causal=True)
    return of_attention(trace, trace.attentions[1], 3)


def test_text_is_what_a_pipe_gets(tmp_path: Path) -> None:
    file = save(tmp_path / "a.txt", view=heatmap(made()), width=70)
    assert file.read_text(encoding="utf-8") == plain(heatmap(made()), 70)


@pytest.mark.parametrize("name", SCENES)
def test_svg_is_well_formed_and_loads_nothing(name: str) -> None:
    root = ElementTree.fromstring(look(SCENES[name](), ".svg", 100))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = look(SCENES[name](), ".svg", 100).decode()
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "<script" not in text


@pytest.mark.parametrize("name", SCENES)
def test_html_loads_nothing(name: str) -> None:
    text = look(SCENES[name](), ".html", 100).decode()
    assert not re.findall(r"https?://|<script|<link|@import|src=", text)


def test_text_of_users_is_escaped() -> None:
    matrix = made(["<script>alert(1)</script>", "&amp;", '"', "]]>", *samples.HOSTILE])
    for ending in (".svg", ".html"):
        text = look(heatmap(matrix), ending, 160).decode()
        assert "<script" not in text
        assert "&amp;amp;" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_colours_reach_svg_and_html() -> None:
    for ending in (".svg", ".html"):
        assert "#fde725" in look(heatmap(made()), ending).decode()


def test_csv_has_every_value(tmp_path: Path) -> None:
    matrix = made(samples.HOSTILE)
    with save(tmp_path / "a.csv", numbers=matrix).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 121
    for at, line in enumerate(rows):
        query, key = divmod(at, 11)
        assert (int(line["query"]), int(line["key"])) == (query, key)
        assert line["query_label"] == samples.HOSTILE[query].encode("utf-8", "backslashreplace").decode()
        assert np.float32(line["weights"]) == matrix.values[query, key]
        assert int(line["hidden"]) == (key > query)


def test_csv_of_measurements(tmp_path: Path) -> None:
    with save(tmp_path / "a.csv", numbers=samples.by_candidate()).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["candidate", "candidate_label", "coreference share"]
    assert rows[1] == ["0", "animal", "0.67"]
    assert rows[5] == ["4", "none", ""]
    m = samples.by_head(2, 3)
    with save(tmp_path / "b.csv", numbers=m).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert [float(row[-1]) for row in rows[1:]] == m.values.ravel().tolist()


def test_npz_comes_back(tmp_path: Path) -> None:
    matrix = made()
    with np.load(save(tmp_path / "a.npz", numbers=matrix), allow_pickle=False) as found:
        np.testing.assert_array_equal(found["values"], matrix.values)
        assert tuple(found["key"]) == matrix.keys.labels
        np.testing.assert_array_equal(found["hidden"], matrix.hidden)
        assert str(found["name"]) == "weights"
    with np.load(save(tmp_path / "b.npz", numbers=samples.by_head()), allow_pickle=False) as found:
        np.testing.assert_array_equal(found["values"], samples.by_head().values)
        assert found["layer"][5] == "L5"


def test_parquet_comes_back(tmp_path: Path) -> None:
    import pyarrow.parquet

    matrix = made()
    found = pyarrow.parquet.read_table(save(tmp_path / "a.parquet", numbers=matrix)).to_pydict()
    np.testing.assert_array_equal(np.float32(found["weights"]), matrix.values.ravel())
    assert found["key_label"][1] == "고양이"


def test_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        save(tmp_path / "a.parquet", numbers=made())
    assert "[parquet]'" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_refuses_to_replace_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(UsageError, match="exists") as caught:
        write(file, b"new")
    assert worded(caught.value.hint) == "Give --force to replace it, or another name."
    assert file.read_text() == "old"
    write(file, b"new", force=True)
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"

    def race() -> None:
        with writing(file) as out:
            out.write(b"mine")
            file.write_text("theirs")

    with pytest.raises(UsageError, match="exists"):
        race()
    assert file.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("force", [False, True])
def test_whole_or_not_at_all(tmp_path: Path, force: bool) -> None:
    file = tmp_path / "a.txt"
    if force:
        file.write_text("old")

    def fail() -> None:
        with writing(file, force=force) as out:
            out.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.read_text() for path in tmp_path.iterdir()] == (["old"] if force else [])


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    file = write(tmp_path / "a.txt", b"x")
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    file.chmod(0o640)
    write(file, b"y", force=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["a.npz", "self.npz", "self.npz/x.npz"])
@pytest.mark.parametrize("force", [False, True])
def test_links_that_lead_to_themselves(name: str, force: bool, tmp_path: Path) -> None:
    (tmp_path / "a.npz").symlink_to("b.npz")
    (tmp_path / "b.npz").symlink_to("a.npz")
    (tmp_path / "self.npz").symlink_to("self.npz")
    there = sorted(tmp_path.iterdir())
    path = tmp_path / name
    with pytest.raises(OSError, match="a link that leads back to itself"):
        resolved(path)
    for refused in (
        lambda: write(path, b"x", force=force),
        lambda: write_whole(path, lambda file: None, force=force),
        lambda: check_target(path, force=force),
    ):
        with pytest.raises(UsageError, match=r"npz cannot be written: it is a link that leads back to itself"):
            refused()
    assert sorted(tmp_path.iterdir()) == there
    assert all(one.is_symlink() for one in there)


def test_arrays_follow_links(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to("there.npz")
    write_whole(tmp_path / "link.npz", lambda file: np.savez(file, a=np.arange(3)))  # type: ignore[arg-type]
    assert (tmp_path / "link.npz").is_symlink()
    with np.load(tmp_path / "there.npz") as back:
        np.testing.assert_array_equal(back["a"], [0, 1, 2])


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "a.txt"
    link.symlink_to(tmp_path / "there" / "b.txt")
    write(link, b"x")
    assert link.is_symlink()
    assert (tmp_path / "there" / "b.txt").read_bytes() == b"x"


def test_pipes_are_written_directly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write(f"/dev/fd/{writer}", b"x")
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"x"


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        write(tmp_path, b"")
    with pytest.raises(UsageError, match="does not exist") as caught:
        write(tmp_path / "no" / "a.txt", b"")
    assert "mkdir -p" in caught.value.hint
    with pytest.raises(UsageError, match="not a format") as caught:
        save(tmp_path / "a.xyz", view="x")
    for ending in (*LOOKS, *NUMBERS):
        assert ending in caught.value.hint
    with pytest.raises(UsageError, match=r"^a has no ending"):
        save(tmp_path / "a", view="x")
    for folder in (Path("/"), Path()):
        with pytest.raises(UsageError, match=f"^{folder} is a folder"):
            save(folder, view="x")
    with pytest.raises(UsageError, match="no numbers"):
        save(tmp_path / "a.csv", view="x")
    with pytest.raises(UsageError, match="no view"):
        save(tmp_path / "a.txt", numbers=made())
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        write(tmp_path / "a.txt", b"x")
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", cannot)
    assert write(tmp_path / "a.txt", b"x").read_bytes() == b"x"
    assert len(list(tmp_path.iterdir())) == 1


def test_columns_are_saved_as_they_are(tmp_path: Path) -> None:
    columns = {"part": ["L0 MLP", "a,b"], "added": [1.5, float("nan")]}
    save(tmp_path / "parts.csv", numbers=columns)
    assert (tmp_path / "parts.csv").read_text() == 'part,added\nL0 MLP,1.5\n"a,b",\n'
    save(tmp_path / "parts.npz", numbers=columns)
    with np.load(tmp_path / "parts.npz") as back:
        assert back["part"].tolist() == columns["part"]
        np.testing.assert_array_equal(back["added"], columns["added"])
