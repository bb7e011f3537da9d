"""What to run on, from texts, files and stdin."""

import io
import sys
from pathlib import Path

import pytest

from attnx.errors import InputError, UsageError
from attnx.intake import take


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_text_is_taken_as_it_is() -> None:
    (given,) = take(" it  was\n", pair="x")
    assert (given.text, given.pair) == (" it  was\n", "x")


@pytest.mark.parametrize(
    ("content", "text"), [(b"a\nb\n", "a\nb"), (b"a\r\n", "a"), ("고양이".encode(), "고양이"), (b"\xef\xbb\xbfa", "a")]
)
def test_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes, text: str) -> None:
    stdin(monkeypatch, content)
    assert take("-")[0].text == text


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_no_text_on_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    stdin(monkeypatch, content)
    with pytest.raises(InputError):
        take("-")


def test_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone\r\n\n two \nthree")
    assert [(g.line, g.text) for g in take(file=tmp_path / "f")] == [(1, "one"), (3, " two "), (4, "three")]


def test_file_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"one\ntwo\n")
    assert [g.text for g in take(file=Path("-"))] == ["one", "two"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"caf\xe9\n"])
def test_no_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match="f"):
        take(file=tmp_path / "f")
    with pytest.raises(InputError):
        take(file=tmp_path)


def test_one_source_at_a_time() -> None:
    with pytest.raises(UsageError):
        take()
    with pytest.raises(UsageError, match="--ids"):
        take("a", ids="1")
    with pytest.raises(UsageError, match="--pair"):
        take(ids="1", pair="b")
