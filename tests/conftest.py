"""What every test needs: a cache of its own, so that none reads what another run of attnx left behind; one thread."""

import signal

import pytest

from attnx.session.cache import VARIABLE
from tests import pace

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and every program that they start would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        # Tests run side by side already: the threads of a session would only wait for one another, busily.
        patch.setattr("attnx.session.ort.THREADS", 1)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(pace.slow([item.nodeid for item in items]))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
