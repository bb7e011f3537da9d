"""What every test needs: a cache of its own, so that none reads what another run of attnx left behind; one thread."""

import compileall
import gc
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

# Tests run side by side already: threads would only wait for one another, busily. Read once, as numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import typer.main
from hypothesis import HealthCheck, settings

from attnx.feed import text
from attnx.interventions import unedited
from attnx.session import ort, session_pool
from attnx.session.cache import VARIABLE
from attnx.sites import recognise
from tests import pace

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and every program that they start would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, likewise


# No test depends on how long it takes: hypothesis sets limits of its own unless told.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

BUNDLED = Path(__file__).parents[1] / "models"

# Made anew for every command line that is run, though nothing changes it.
typer.main.get_command = cache(typer.main.get_command)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        patch.setattr("attnx.session.ort.THREADS", 1)
        patch.setattr(text, "load_tokenizer", _once(text.load_tokenizer))
        opened = _opened_once(ort.open_session)
        for module in (ort, session_pool, unedited):
            patch.setattr(module, "open_session", opened)
        patch.setattr(recognise, "find", _found_once(recognise.find))
        patch.setattr("onnxruntime.InferenceSession", _on_one_thread())
        yield


def _on_one_thread() -> Any:
    """The sessions that tests open themselves: with a thread for every core they take five times the processor time."""
    import onnxruntime

    class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: Any, sess_options: Any = None, *args: Any, **more: Any) -> None:
            options = sess_options or onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.intra_op_num_threads or 1
            super().__init__(model, options, *args, **more)

    return InferenceSession


def _once(load: Any) -> Any:
    """Reads the tokenizers of the bundled models once: they take as long as a run, and nothing changes them."""
    bundled = cache(load)

    def load_tokenizer(path: Any, **more: Any) -> Any:
        own = not more and Path(path).is_relative_to(BUNDLED)
        return bundled(Path(path)) if own else load(path, **more)

    return load_tokenizer


def _found_once(find: Any) -> Any:
    """Walks the graphs of the bundled models once: they have no branches, and nothing changes what was found."""
    bundled = cache(find)

    def found(path: Path, choose: Any = None, outside: Any = None, numbered: Any = None) -> Any:
        if not path.is_relative_to(BUNDLED):
            return find(path, choose, outside, numbered)
        known = bundled(path, None, outside)
        return known if numbered is None else replace(known, sites=numbered[0], fused_of=numbered[1])

    return found


def _opened_once(open_session: Any) -> Any:
    """Keeps the sessions on bundled models that were used last: hundreds of tests run the same few graphs.

    A session has no state but its weights: one that is thorough has a copy, of 50 MB, any other reads the file's, which
    are mapped into memory. What a test changes in a graph or in how it is opened is another key.
    """
    copying, mapping = lru_cache(maxsize=6)(open_session), lru_cache(maxsize=32)(open_session)

    def opened(model: Any, folder: Path | None = None, device: str = "auto", **more: Any) -> Any:
        own = isinstance(model, bytes) and folder is not None and folder.is_relative_to(BUNDLED)
        own = own and ort.THREADS == 1 and not more.get("save_to")
        kept = copying if more.get("thorough", True) else mapping
        return (kept if own else open_session)(model, folder, device, **more)

    return opened


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile attnx where Python is told to keep no bytecode: else each of hundreds of processes would compile it."""
    if sys.dont_write_bytecode and not hasattr(session.config, "workerinput"):
        compileall.compile_dir(BUNDLED.parent / "attnx", quiet=2)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays to the end: no garbage collection looks through it again."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(pace.slow([item.nodeid for item in items]))
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
