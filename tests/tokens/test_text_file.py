"""A file that is no text says what is wrong with it, in words."""

import bz2
import gzip
from pathlib import Path

import pytest

from attnx.errors import InputError
from attnx.measure.alignment_error import read_gold
from attnx.measure.contacts import read_gold as read_contacts
from attnx.measure.coref_data import read
from attnx.study.prompts import read_spans
from attnx.tokens.text_file import read_text, wide

READERS = (
    lambda path: read_text(path, "Hint."),
    read_gold,
    lambda path: read_contacts(path, ("M", "K"), 1),
    read,
    read_spans,
)


def test_a_mark_in_front_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9\n")
    assert read_text(tmp_path / "bom", "") == "café\n"


@pytest.mark.parametrize("reader", READERS)
def test_why_a_file_cannot_be_read(reader, tmp_path: Path) -> None:
    latin = tmp_path / "latin.tsv"
    latin.write_bytes(b"caf\xe9 x")
    for path, said in (
        (tmp_path / "nowhere", "nowhere cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (latin, "latin.tsv is not UTF-8 text: byte 0xe9 at byte 3"),
    ):
        with pytest.raises(InputError) as caught:
            reader(path)
        assert caught.value.message.endswith(said)
        assert caught.value.hint


@pytest.mark.parametrize(("content", "said"), [
    ("The cat sat.\n".encode("utf-16-le"), "utf-16le"),
    ("The cat sat.\n".encode("utf-16-be"), "utf-16be"),
    ("naïve café\n".encode("utf-16"), "utf-16 "),
    ("naïve café\n".encode("latin1"), "latin1"),
    (gzip.compress(b"The cat sat.\n", mtime=0), "packed by gzip"),
    (bz2.compress(b"The cat sat.\n"), "packed by bzip2"),
])  # fmt: skip
def test_what_is_no_utf8_is_told_by_its_beginning(tmp_path: Path, content: bytes, said: str) -> None:
    """UTF-16 without its mark is valid UTF-8, with NUL for every other byte."""
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match="is not UTF-8 text") as caught:
        read_text(tmp_path / "text.txt", "Give a text.")
    assert said in caught.value.hint


def test_a_nul_here_and_there_is_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"The \0cat\0\n")
    assert read_text(tmp_path / "text.txt", "") == "The \0cat\0\n"
    assert wide(b"a\0") == ""
