"""The README: every command is run, and what it shows is what comes out."""

import doctest
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import readme  # noqa: E402

TEXT = readme.README.read_text(encoding="utf-8")
COMMANDS = list(readme.commands(TEXT))
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 10


def test_the_two_commands_of_a_newcomer() -> None:
    first, second = re.findall(r"```sh\n(.*?)\n```", TEXT)[:2]
    assert first.endswith(f"&& {COMMANDS[0].line}")
    assert "pip install" in first
    assert second.endswith("python -m pytest")


def same(shown: str, got: str) -> bool:
    """Equal but for the last digit of numbers, the bars that are drawn from them, and the device."""
    shown, got = (re.sub(r"[▏▎▍▌▋▊▉█░▒▓]+ ?|\bcuda:\d+|\bcpu\b|[\u2800-\u28ff]+", "", text) for text in (shown, got))
    if [part.split() for part in NUMBER.split(shown)] != [part.split() for part in NUMBER.split(got)]:
        return False
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(got), strict=True):
        step = 10.0 ** -min(4, len(a.partition(".")[2]))
        if abs(float(a) - float(b)) > 1.01 * step:
            return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all that run in one process: a command may use what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


def make_ready(at: int, folder: Path) -> None:
    """Run the earlier commands that make the files and folders which a command names, where that was not done yet."""
    line = COMMANDS[at].line
    named = set(re.findall(r"\b([\w-]+)/", line)) | set(re.findall(r"\b[\w-]+\.(?:txt|jsonl|parquet|npz)\b", line))
    for name in sorted(named):
        for earlier in range(at):
            if not (folder / name).exists() and re.search(
                rf"(?<![\w.]){re.escape(name)}(?![\w.])", COMMANDS[earlier].line
            ):
                make_ready(earlier, folder)
                readme.run(COMMANDS[earlier].line, folder)


@pytest.mark.parametrize("at", range(len(COMMANDS)))
def test_command(at: int, folder: Path) -> None:
    command = COMMANDS[at]
    make_ready(at, folder)
    got = readme.run(command.line, folder)
    assert same(command.output, got), f"{command.line}\nscripts/readme.py writes the README anew; it now prints:\n{got}"


def test_comparing_notices_differences() -> None:
    assert same("a 0.67 ██", "a 0.68 ██▏")
    assert not same("a 0.67", "a 0.69")
    assert not same("a 0.67", "b 0.67")
    assert not same("a 0.67", "a 0.67\nmore")


def test_python() -> None:
    blocks = re.findall(r"```pycon\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    names: dict[str, object] = {}
    for block in blocks:
        runner.run(parser.get_doctest(block, names, "README", "README.md", 0), clear_globs=False)
        assert runner.summarize(verbose=False).failed == 0


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_the_contents_lead_to_every_section() -> None:
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    sections = re.findall(r"^## (.+)$", prose, re.MULTILINE)
    linked = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", prose)
    assert sorted(name for name, _ in linked if name in sections) == sorted(sections)
    for _, anchor in linked:  # as GitHub makes them
        assert anchor in {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in sections}
