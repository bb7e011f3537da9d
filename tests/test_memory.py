"""How much memory is free: what the machine says, and what is left of the limits that a container is under."""

import ast
import builtins
import errno
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import attnx
from attnx.cli.refusals import of_system
from attnx.cli.wording import worded
from attnx.errors import RunError, lacks_memory
from attnx.session import memory
from attnx.session.ort import open_session
from attnx.tokens.load import load_tokenizer

GIB = 2**30


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 1048576 kB\nMemAvailable: 16777216 kB\n"}
SECOND = {"proc/self/cgroup": "0::/a.slice/b.scope\n"}
FIRST = {"proc/self/cgroup": "9:name=systemd:/x\n4:cpu,memory:/x/y\n0::/x\n"}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MEMINFO, 16 * GIB),
        # the second version: the group's own limit, file cache that can be dropped counted as free
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n",
            },
            GIB + GIB // 2,
        ),
        # a limit of a group above it
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": "max\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": "1\n",
                "sys/fs/cgroup/a.slice/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/a.slice/memory.current": f"{GIB}\n",
            },
            GIB,
        ),
        # in a container with a namespace of its own the group stands at the top
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{GIB}\n",
                "sys/fs/cgroup/memory.current": f"{GIB + 9}\n",
            },
            0,
        ),
        # the first version; the path is the host's, and is not there inside
        (
            MEMINFO
            | FIRST
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            7 * GIB,
        ),
        # the first version without a limit
        (
            MEMINFO
            | FIRST
            | {
                "sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/y/memory.usage_in_bytes": "5\n",
            },
            16 * GIB,
        ),
        # a limit above what the machine has free
        (
            MEMINFO
            | SECOND
            | {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": f"{40 * GIB}\n",
                "sys/fs/cgroup/a.slice/b.scope/memory.current": "0\n",
            },
            16 * GIB,
        ),
    ],
)
def test_what_is_free(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    assert memory.available(system(tmp_path, files)) == free


def test_the_message_has_the_figures_and_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = attnx.open("minilm", device="cpu").sites
    feed = {"input_ids": np.ones((1, 4096), np.int64)}
    monkeypatch.setattr(memory, "available", lambda: 2 * GIB)
    with pytest.raises(RunError) as caught:
        memory.check(sites, feed, ("masked", "weights"))
    assert caught.value.message == "masked, weights of 6 sites need 9.0 GiB, and 2.0 GiB of memory are free"
    assert "One layer takes 1.5 GiB (`layers=...`)." in caught.value.hint
    assert "One layer takes 1.5 GiB (--layer L, --head L.H)." in worded(caught.value.hint)
    memory.check(sites[:1], feed, ("masked", "weights"))
    with pytest.raises(RunError, match=r"one layer's matrices need 2\.2 GiB inside the model"):
        memory.check_reduced(sites, feed)
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check(sites, feed, ("weights",))


REFUSED = [
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc"),
    ImportError("some.so: failed to map segment from shared object", name="some"),
    ImportError("some.so: cannot map zero-fill pages: Cannot allocate memory", name="some"),
]


@pytest.mark.parametrize("error", REFUSED, ids=str)
def test_what_was_refused_memory_is_known_by_its_text(error: Exception) -> None:
    assert lacks_memory(error)
    told = of_system(error)
    assert isinstance(told, RunError)
    assert "not enough memory" in told.message


@pytest.mark.parametrize("error", [ValueError("x"), ImportError("no module named x"), OSError(errno.ENOENT, "none")])
def test_other_errors_are_not_of_memory(error: Exception) -> None:
    assert not lacks_memory(error)


def test_python_s_own_silence_about_memory_counts_only_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SystemError("error return without exception set")
    monkeypatch.setattr("attnx.cli.refusals.memory_limit", lambda: None)
    assert of_system(error) is None
    monkeypatch.setattr("attnx.cli.refusals.memory_limit", lambda: 2**28)
    assert isinstance(of_system(error), RunError)


def test_a_model_that_does_not_fit_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Exception during initialization: std::bad_alloc")

    path = attnx.open("tiny-gpt", device="cpu").path
    monkeypatch.setattr(onnxruntime, "InferenceSession", refused)
    with pytest.raises(RunError, match="there is not enough memory to load the model"):
        open_session(path, device="cpu")


def test_a_tokenizer_whose_library_does_not_fit_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refused(name: str, *args: Any, **named: Any) -> Any:
        if name == "tokenizers":
            raise ImportError("tokenizers.abi3.so: failed to map segment from shared object", name="tokenizers")
        return real(name, *args, **named)

    folder = attnx.open("minilm", device="cpu").path.parent
    monkeypatch.setattr(builtins, "__import__", refused)
    with pytest.raises(ImportError) as caught:
        load_tokenizer(folder)
    assert lacks_memory(caught.value)


def blaming(source: str) -> list[int]:
    """Lines of handlers that take any error of a library for one of ours, and do not ask whether it lacked memory."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = []
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is not None):
        caught = {getattr(node, "id", "") for node in ast.walk(handler.type)}  # type: ignore[arg-type]
        inside = [node for part in handler.body for node in ast.walk(part)]
        raises = any(isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) for node in inside)
        if not raises or not caught & {"Exception", "BaseException", "ImportError", "RuntimeError"}:
            continue
        names = {getattr(node, "id", "") for node in inside}
        names |= {getattr(node, "id", "") for name in names & set(functions) for node in ast.walk(functions[name])}
        if "lacks_memory" not in names:
            found.append(handler.lineno)
    return found


def test_no_handler_blames_a_file_for_memory_that_was_refused() -> None:
    root = Path(attnx.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).as_posix() != "cli/app.py"]  # the boundary
    found = {str(path.relative_to(root)): blaming(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_handler_that_blames_a_file_is_seen() -> None:
    assert blaming("try:\n    f()\nexcept Exception as e:\n    raise ModelError(str(e))") == [3]
    assert blaming("try:\n    f()\nexcept ImportError:\n    raise UsageError('no x') from None") == [3]
    asks = "try:\n    f()\nexcept Exception as e:\n    if lacks_memory(e):\n        raise\n    raise ModelError(str(e))"
    assert blaming(asks) == []
