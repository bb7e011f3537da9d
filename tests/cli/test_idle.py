"""Options that would do nothing beside what else was asked are refused, before a model is opened."""

import pytest

from tests.cli.conftest import Run

TEXT = "the cat sat"


@pytest.mark.parametrize(("args", "said"), [
    (("scale", TEXT, "--divide", "4"), "--divide would do nothing without --numbers"),
    (("scale", "--numbers", "1,2", "--layer", "3", "--all"), "--layer and --all would do nothing with --numbers"),
    (("scale", "--theory", "2,4", "--divide", "4"), "--divide would do nothing with --theory"),
    (("scale", "--theory", "2,4", "--as-if", "sqrt"), "--as-if would do nothing with --theory"),
    (("coref", "--dataset", "pairs", "--to", "cat"), "--to would do nothing with --dataset"),
    (("coref", "--dataset", "pairs", "--ids", "1", "--set", "a=0"), "--ids and --set would do nothing with --dataset"),
    (("coref", "--dataset", "pairs", "--target", "a"), "--target would do nothing with --dataset"),
    (("cost", "--no-measure", "--longest", "5"), "--longest would do nothing with --no-measure"),
    (("heads", TEXT, "--map", "sink", "--sort", "sink"), "--sort would do nothing with --map"),
    (("heads", TEXT, "--similar", "0.0", "--map", "sink"), "--map would do nothing with --similar"),
    (("heads", TEXT, "--all", "--top", "3"), "--top would do nothing with --all"),
    (("flow", TEXT, "--top", "3"), "--top would do nothing without --query"),
    (("inspect", TEXT, "--top", "3"), "--top would do nothing: the overview is shown whole"),
    (("inspect", TEXT, "--top", "3", "--json"), "--top would do nothing: the overview is shown whole"),
    (("inspect", TEXT, "--top", "3", "--view", "grid"), "--top would do nothing: the grid is shown whole"),
    (("inspect", TEXT, "--top", "3", "--head", "0.0"), "--top would do nothing: the table is shown whole"),
    (("inspect", TEXT, "--scale", "log"), "--scale log would do nothing: the overview has no colours"),
    (("inspect", TEXT, "--scale", "row", "-q", "cat"), "--scale row would do nothing: the ranking has no colours"),
])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(attnx: Run, args: tuple[str, ...], said: str) -> None:
    done = attnx(*args, code=2)
    assert done.err.startswith(f"attnx: {said}")
    assert done.err.splitlines()[1].startswith("  Leave ")


@pytest.mark.parametrize("args", [
    ("inspect", TEXT, "--top", "2", "--head", "0.0", "--json"),
    ("inspect", TEXT, "--top", "2", "--head", "0.0", "--save", "a.json"),
    ("inspect", TEXT, "--top", "2", "-q", "cat"),
    ("inspect", TEXT, "--top", "2", "-q", "cat", "-l", "1"),
    ("inspect", TEXT, "--top", "2", "--head", "0.0", "--view", "lines"),
    ("inspect", TEXT, "--scale", "log", "--head", "0.0"),
    ("flow", TEXT, "--top", "2", "-q", "cat"),
    ("scale", "--numbers", "1,2", "--divide", "4"),
])  # fmt: skip
def test_one_that_does_something_is_not(attnx: Run, args: tuple[str, ...]) -> None:
    attnx(*args)
