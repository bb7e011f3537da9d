"""What every test needs: a cache of its own, so that none reads what another run of attnx left behind; one thread."""

import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attnx import tokens
from attnx.session.cache import VARIABLE
from tests import pace

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and every program that they start would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


BUNDLED = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        # Tests run side by side already: the threads of a session would only wait for one another, busily.
        patch.setattr("attnx.session.ort.THREADS", 1)
        patch.setattr(tokens, "load_tokenizer", _once(tokens.load_tokenizer))
        yield


def _once(load: Any) -> Any:
    """Reads the tokenizers of the bundled models once: they take as long as a run, and nothing changes them."""
    bundled = cache(load)

    def load_tokenizer(path: Any, **more: Any) -> Any:
        own = not more and Path(path).is_relative_to(BUNDLED)
        return bundled(Path(path)) if own else load(path, **more)

    return load_tokenizer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(pace.slow([item.nodeid for item in items]))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
