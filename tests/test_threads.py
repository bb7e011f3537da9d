"""One model may be asked by several threads at once: what each gets is what it would have got alone."""

import contextlib
import csv
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import numpy as np
import onnxruntime
import pytest

import attnx
from attnx.model import Model
from attnx.paths import new_mode
from attnx.scan.corpus import read
from attnx.session.ort import open_session
from attnx.silence import quiet, reserve

TEXTS = ("The cat sat on the mat. The cat", "It was tired because it was late.", "x y z " * 20, "hello")


def weights(model: Model, text: str) -> list[np.ndarray]:
    return [a.weights for a in model.trace(text).attentions if a.weights is not None]


def row(model: Model, text: str) -> list[np.ndarray]:
    return [a.weights for a in model.rows(text, [1]).attentions if a.weights is not None]


def heads(model: Model, text: str) -> list[np.ndarray]:
    return [measure.values for measure in model.heads(text).measures]


def batch(model: Model, text: str) -> list[np.ndarray]:
    last = list(model.trace_many([*TEXTS, text]))[-1]
    return [a.weights for a in last.attentions if a.weights is not None]


@pytest.mark.parametrize("name", ["minilm", "tiny-gpt"])
def test_threads_get_what_each_would_get_alone(name: str) -> None:
    asks: list[Callable[[Model, str], list[np.ndarray]]] = [weights, row, heads, batch]
    jobs = [(ask, text) for ask in asks for text in TEXTS]
    alone = attnx.open(name, device="cpu")
    want = [ask(alone, text) for ask, text in jobs]
    shared = attnx.open(name, device="cpu")  # nothing is built yet: the first calls meet while its sessions are made
    order = random.Random(0).sample(range(len(jobs)), len(jobs))
    with ThreadPoolExecutor(6) as pool:
        got = dict(zip(order, pool.map(lambda at: jobs[at][0](shared, jobs[at][1]), order), strict=True))
    for at, expected in enumerate(want):
        assert len(got[at]) == len(expected)
        for one, other in zip(got[at], expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_output_goes_where_it_went_once_threads_that_overlapped_were_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = quiet(), quiet()
    reserve()
    with first:
        os.write(1, b"noise of the first\n")
        second.__enter__()
    os.write(1, b"noise of the second\n")
    second.__exit__(None, None, None)
    reserve(False)
    os.write(1, b"a result\n")
    assert capfd.readouterr().out == "a result\n"


@pytest.mark.parametrize("only", [True, False])
def test_what_another_thread_of_a_program_writes_is_not_lost(only: bool, capfd: pytest.CaptureFixture[str]) -> None:
    over = Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(over.wait, 60)
        reserve(only)
        with quiet():
            os.write(1, b"of another thread\n")
        reserve(False)
        over.set()
        assert waiting.result()
    assert capfd.readouterr().out == ("" if only else "of another thread\n")


def test_without_a_place_that_is_nowhere_there_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reserve()
    with monkeypatch.context() as patched:
        patched.setattr("attnx.silence.os.open", lambda *_: Path("/no/such/place").readlink())
        with quiet(errors=True):
            os.write(1, b"noise\n")
    with quiet(errors=True):
        os.write(1, b"of a library\n")
        os.write(2, b"of a library\n")
    reserve(False)
    os.write(1, b"a result\n")
    os.write(2, b"a note\n")
    assert tuple(capfd.readouterr()) == ("noise\na result\n", "a note\n")


def test_corpora_that_are_read_at_once_may_all_have_long_fields(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    (tmp_path / "c.csv").write_text(f"text\none\n{'x' * (before + 1)}\n")
    first, second = (read([tmp_path / "c.csv"]) for _ in range(2))
    assert next(first).text == next(second).text == "one"
    first.close()  # type: ignore[attr-defined]
    assert len(next(second).text) == before + 1
    assert list(second) == []
    assert csv.field_size_limit() == before


def test_threads_that_ask_for_the_mode_of_new_files_leave_the_mask_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    mask, meeting = [0o027], Barrier(2)

    def swapped(new: int) -> int:
        old, mask[0] = mask[0], new
        with contextlib.suppress(BrokenBarrierError):
            meeting.wait(0.2)  # both are between the two calls, if anything lets them
        return old

    monkeypatch.setattr("attnx.paths.os.umask", swapped)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: new_mode(), range(2))) == [0o640, 0o640]
    assert mask == [0o027]


def test_no_session_keeps_a_processor_after_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that spin on between runs take turns with those of the next session: sections of layers, lanes."""
    seen: list[str] = []
    made = onnxruntime.InferenceSession

    def opened(source: Any, options: Any, **named: Any) -> Any:
        seen.append(options.get_session_config_entry("session.force_spinning_stop"))
        return made(source, options, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    path = attnx.open("tiny-gpt", device="cpu").path
    for thorough in (False, True):
        open_session(path, device="cpu", thorough=thorough)
    assert seen == ["1", "1"]
