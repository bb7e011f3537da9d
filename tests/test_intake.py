"""What to run on, from texts, files and stdin."""

import io
import sys
from itertools import islice
from pathlib import Path

import pytest

from attnx.cli import app as cli
from attnx.cli.inputs import Lines, only, several, take
from attnx.cli.option_groups import Source, Writing
from attnx.cli.wording import worded
from attnx.errors import InputError, UsageError


def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_text_is_taken_as_it_is() -> None:
    (item,) = take(Source(" it  was\n", pair="x"))
    assert (item.text, item.source.pair) == (" it  was\n", "x")


@pytest.mark.parametrize(
    ("content", "text"), [(b"a\nb\n", "a\nb"), (b"a\r\n", "a"), ("고양이".encode(), "고양이"), (b"\xef\xbb\xbfa", "a")]
)
def test_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes, text: str) -> None:
    stdin(monkeypatch, content)
    assert take(Source("-"))[0].text == text


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_no_text_on_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    stdin(monkeypatch, content)
    with pytest.raises(InputError):
        take(Source("-"))


def test_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone\r\n\n two \nthree")
    assert [(g.line, g.text) for g in take(Source(file=tmp_path / "f"))] == [(1, "one"), (3, " two "), (4, "three")]


@pytest.mark.parametrize("content", [b"one\r\r two \rthree\r", b"one\r\n\r two \nthree"])
def test_a_carriage_return_alone_ends_a_line(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(content)
    lines = take(Source(file=tmp_path / "f"))
    assert isinstance(lines, Lines)
    assert lines.count == 3
    assert [(g.line, g.text) for g in lines] == [(1, "one"), (3, " two "), (4, "three")]
    stdin(monkeypatch, content)
    assert [g.text for g in take(Source(file=Path("-")))] == ["one", " two ", "three"]


@pytest.mark.parametrize(
    ("name", "told"), [("a.jsonl", True), ("a.json", True), ("a.CSV", True), ("a.txt", False), ("jsonl", False)]
)
def test_lines_with_fields_are_texts_as_they_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: bool
) -> None:
    (tmp_path / name).write_text('{"text": "one"}\n', encoding="utf-8")
    assert [g.text for g in take(Source(file=tmp_path / name))] == ['{"text": "one"}']
    assert ("as it stands" in capsys.readouterr().err) == told


def test_file_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"one\ntwo\n")
    assert [g.text for g in take(Source(file=Path("-")))] == ["one", "two"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"caf\xe9\n"])
def test_no_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match="f"):
        take(Source(file=tmp_path / "f"))
    with pytest.raises(InputError):
        take(Source(file=tmp_path))


def test_one_source_at_a_time() -> None:
    with pytest.raises(UsageError):
        take(Source())
    with pytest.raises(UsageError, match="--ids"):
        take(Source("a", ids="1"))
    with pytest.raises(UsageError, match="--pair"):
        take(Source(ids="1", pair="b"))


def test_a_long_file_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(b"\xef\xbb\xbffirst\r\n\n" + b"line\n" * 20_000 + b"caf\xe9\n")
    given = take(Source(file=file))
    assert isinstance(given, Lines)
    assert given.count == 20_002
    texts = iter(given)
    assert [(one.text, one.line) for one in islice(texts, 3)] == [("first", 1), ("line", 3), ("line", 4)]
    with pytest.raises(InputError, match=f"byte 0xe9 at byte {10 + 1 + 5 * 20_000 + 3}"):
        list(texts)


@pytest.mark.parametrize("blank", ["\u3000", "\u00a0", "\u2028", "\x1c", "\u2003\t", "\u0085"])
def test_what_is_counted_is_what_is_read(blank: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(f"\ufeff{blank}\none\n{blank}\r\ntwo\n{blank}{blank}\nthree{blank}\n".encode())
    given = take(Source(file=file))
    assert isinstance(given, Lines)
    assert given.count == len(list(given)) == 3


def test_a_pipe_is_not_read_twice_to_count_it(tmp_path: Path) -> None:
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("one\ntwo\nthree\n",))
    writer.start()
    given = take(Source(file=pipe))
    writer.join()
    assert isinstance(given, Lines)
    assert given.count is None
    assert [one.text for one in given] == ["one", "two", "three"]


def test_one_line_is_one_text(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("\n it \n\n")
    given = take(Source(file=tmp_path / "one"))
    only(given, "--json")
    assert not several(given)
    (tmp_path / "two").write_text("a\nb\nc")
    with pytest.raises(UsageError, match="--json takes one text, and there are 3"):
        only(take(Source(file=tmp_path / "two")), "--json")


def test_lines_of_stdin_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"a\nb\n")
    given = take(Source(file=Path("-")))
    assert isinstance(given, Lines)
    assert given.count is None
    with pytest.raises(UsageError, match="there are several"):
        only(given, "--save")
    assert [one.text for one in given] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("model.onnx", "--model names"),
        ("a.PNG", "--image"),
        ("a.wav", "--audio"),
        ("a.npz", "--inputs"),
        ("a.txt", "--file"),
    ],
)
def test_the_path_of_a_file_is_no_text(tmp_path: Path, name: str, how: str) -> None:
    """Else the words of the path would be analysed by the default model."""
    path = tmp_path / name
    assert take(Source(str(path)))[0].text == str(path)  # nothing is there: a text like any other
    path.touch()
    with pytest.raises(UsageError, match=r"is the path of a file") as said:
        take(Source(str(path)))
    assert how in worded(said.value.hint)


def test_the_name_of_a_file_of_no_known_kind_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").touch()
    assert take(Source("cat"))[0].text == "cat"
    assert take(Source("a\x00b.txt"))[0].text == "a\x00b.txt"
    assert take(Source("x" * 5000 + ".txt"))[0].text is not None


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_an_empty_text_is_said_to_be_one(text: str) -> None:
    with pytest.raises(InputError, match="the text is empty"):
        take(Source(text))
    with pytest.raises(InputError, match="the text of --pair is empty"):
        take(Source("a", pair=text))
    assert take(Source(text), Writing(generate=3))[0].text == text  # a decoder writes from what begins its texts


@pytest.mark.parametrize("command", [
    ("inspect",), ("coref",), ("scale",), ("qkv",), ("mask",), ("heads",), ("flow",), ("report",), ("word", "-w", "a"),
    ("diff", "minilm", "minilm"), ("trace", "minilm"),
], ids=lambda command: command[0])  # fmt: skip
def test_every_command_says_that_its_text_is_empty(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    second = ["a river"] if command[0] == "word" else []
    assert cli.run([*command, " ", *second]) == 4
    out, err = capsys.readouterr()
    assert (out, err) == ("", "attnx: the text is empty\n  Give at least one word, in quotes.\n")


@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16-le", "utf-16"), ("utf-16-be", "utf-16"), ("latin1", "latin1")]
)
def test_bytes_that_are_no_utf8_are_told_with_a_way_to_convert_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str, named: str
) -> None:
    content = ("\ufeff" if named == "utf-16" else "") + "était\nfatigué\n"
    (tmp_path / "a.txt").write_bytes(content.encode(encoding))
    with pytest.raises(InputError) as caught:
        list(take(Source(file=tmp_path / "a.txt")))
    assert f"iconv -f {named} -t utf-8" in caught.value.hint
    stdin(monkeypatch, content.encode(encoding))
    with pytest.raises(InputError) as caught:
        take(Source("-"))
    assert f"iconv -f {named} -t utf-8" in caught.value.hint
