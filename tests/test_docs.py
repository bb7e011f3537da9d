"""README and docs: every command is run, and what a page shows is what comes out."""

import doctest
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import console_blocks  # noqa: E402

README = console_blocks.README.read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
PAGES = {str(page.relative_to(ROOT)): page for page in console_blocks.PAGES}


def test_there_are_pages_with_commands() -> None:
    assert sum(len(list(console_blocks.commands(p.read_text(encoding="utf-8")))) for p in PAGES.values()) >= 40


def test_the_two_commands_of_a_newcomer() -> None:
    first, second = re.findall(r"```sh\n(.*?)\n```", README)[:2]
    assert first.endswith(f"&& {next(console_blocks.commands(README)).line}")
    assert "pip install" in first
    assert second.endswith("python -m pytest")


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 10_000


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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    """In order and in one folder: a command may use what an earlier one wrote."""
    stale = []
    for command in console_blocks.commands(PAGES[name].read_text(encoding="utf-8")):
        got = console_blocks.run(command.line, tmp_path)
        if not same(command.output, got):
            stale.append(f"$ {command.line}\n{got}")
    assert not stale, "scripts/console_blocks.py rewrites the pages; these now print:\n" + "\n".join(stale)


def test_comparing_notices_differences() -> None:
    assert same("a 0.67 ██", "a 0.68 ██▏")
    assert not same("a 0.67", "a 0.69")
    assert not same("a 0.67", "b 0.67")
    assert not same("a 0.67", "a 0.67\nmore")


def test_python() -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    blocks = 0
    for name, page in PAGES.items():
        names: dict[str, object] = {}
        for block in re.findall(r"```pycon\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            blocks += 1
            runner.run(parser.get_doctest(block, names, name, name, 0), clear_globs=False)
            assert runner.summarize(verbose=False).failed == 0
    assert blocks


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
