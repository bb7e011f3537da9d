"""Scans on a Ray cluster, through Ray Data: the same parts, made by the same function, wherever there is capacity.

One task on the command's machine reads the corpus, which streams through actors with a session each; they return
the bytes of parts, which the command writes. The model's files are copied to machines that do not have them.
So no shared disk is needed, and a part that is lost with its machine is made again. Facts: measured on Ray 2.60.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from attnx import errors
from attnx.errors import AttnxError, RunError, UsageError, lacks_memory
from attnx.installed import pip
from attnx.numerals import whole
from attnx.scan.carried import Carried, Fetch, carried
from attnx.scan.chunks import Chunk, Corpus
from attnx.scan.identity import software
from attnx.scan.measuring import Job
from attnx.scan.scanning import Engine, Made, made_of, there
from attnx.silence import quiet
from attnx.wording import Wording

if TYPE_CHECKING:
    from attnx.model import Model

EACH = 4
"""Processors per actor if the number of actors is not given: a batch of short texts keeps this many busy."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
"""Disable Ray's usage reports and keep its messages in its log folder, unless the user has set these variables."""
_ALONE = threading.Lock()
"""Held by the scan that runs: stdout and Ray's settings, which it changes, are one for all threads of a process."""
Row = dict[str, Any]
"""What is passed from stage to stage: a part's number, start, texts and end, and its body as bytes."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A model as an actor opens it."""

    model: Carried
    device: str
    software: Mapping[str, str]
    """The software versions where the command runs (`attnx.scan.identity.software`)."""
    threads: int | None
    """Processors that an actor may use; None for onnxruntime's choice."""

    def open(self, fetch: Fetch | None = None) -> Model:
        """Open it on this machine.

        Args:
            fetch: Reads a file on the machine where the command runs; None on that machine itself.

        Raises:
            RunError: Another version of attnx, or of what it computes with, is installed here and might give other
                results; or the model is not here and cannot be copied here.
        """
        from attnx.model import Model

        for name, here in software().items():
            if here != self.software.get(name):
                raise RunError(
                    f"a machine of the cluster has {name} {here}, and the command {self.software.get(name)}",
                    "Install the same version everywhere.",
                )
        model = Model(**self.model.arguments(fetch), device=self.device)
        for one in (model, model.encoder):
            if one is not None:
                one.sessions.threads = self.threads
        return model


class OneThread:
    """A stream that one thread writes to; what other threads write is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.take()

    def take(self) -> None:
        """Make the current thread the one that writes."""
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        return self._stream.write(text) if threading.get_ident() == self._thread else len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def engine(address: str | None = None, workers: int | None = None) -> Engine:
    """The engine of a cluster.

    Args:
        address: Address of the cluster ("auto", "ray://host:10001"); None to start one on this machine.
        workers: How many actors; None for as many as there is capacity for.

    Raises:
        UsageError: Ray is not installed.
    """
    ray = _ray()

    def run(model: Model, job: Job, corpus: Corpus, folder: Path) -> Iterator[Made]:
        if not _ALONE.acquire(blocking=False):
            raise UsageError(
                "another scan of this process runs on Ray", "Begin this one when that has ended, or in another process."
            )
        try:
            yield from run_alone(model, job, corpus, folder)
        finally:
            _ALONE.release()

    def run_alone(model: Model, job: Job, corpus: Corpus, folder: Path) -> Iterator[Made]:
        ours = not ray.is_initialized()
        if ours:
            _start(ray, address, workers)
        context = ray.data.DataContext.get_current()
        before = context.enable_progress_bars, context.target_max_block_size
        # Each part is its own block, so that it goes to whichever actor is free.
        context.enable_progress_bars, context.target_max_block_size = False, 1
        # Ray writes messages about its workers to stdout, which is reserved for the result.
        out, shared = sys.stdout, OneThread(sys.stdout)
        with Path(os.devnull).open("w", encoding="utf-8") as sink:
            try:
                sys.stdout = sink
                for made in _made(ray, model, job, corpus, folder, workers, ours and address is None):
                    shared.take()
                    sys.stdout = cast(TextIO, shared)  # Ray's threads print at any time
                    yield made
                    sys.stdout = sink
            finally:
                sys.stdout = sink
                context.enable_progress_bars, context.target_max_block_size = before
                if ours:
                    ray.shutdown()
                sys.stdout = out

    return run


def _ray() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError(
            Wording("<engine='ray'> needs Ray Data, which is not installed here"),
            f"pip install 'ray[data]', or {pip('scan')}",
        ) from None
    return ray


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    """Join a cluster, or start one.

    Raises:
        RunError: There is no cluster at that address.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    count = max(workers or 1, os.cpu_count() or 1)
    try:
        if address is not None:
            _reach(address)
        with quiet(errors=True):
            if address is not None:
                ray.init(address=address, **settings)
            else:
                ray.init(address="local", num_cpus=count, include_dashboard=False, **settings)
    except Exception as error:  # Ray re-raises whatever its components raise
        if lacks_memory(error):
            raise
        raise RunError(
            f"no Ray cluster could be joined or started: {str(error).strip().splitlines()[0][:200]}",
            Wording("Give <address> of one that runs (auto on its own machines), or leave it out to start one here."),
        ) from None


def _reach(address: str) -> None:
    """Check whether anything answers at "host:port" or "ray://host:port": Ray itself would retry for many minutes.

    Raises:
        OSError: Nothing answers.
    """
    host, _, said = address.removeprefix("ray://").rpartition(":")
    port = whole(said, most=65535)
    if host and port is None:
        raise OSError(f"{said!r} is not a port")
    if host:
        socket.create_connection((host.strip("[]"), port), timeout=10).close()


def _made(
    ray: Any, model: Model, job: Job, corpus: Corpus, folder: Path, workers: int | None, alone: bool
) -> Iterator[Made]:
    """The parts, as the cluster returns them; `alone`: the cluster is only ever this machine."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    room = _room(ray.cluster_resources(), model.device, workers)
    device = re.sub(r"^(auto|cuda)(:\d+)?", "cuda", model.device) if room.gpu else "cpu"  # Ray shows an actor its own
    parted = Carried(model.elsewhere()) if alone else carried(model)
    elsewhere = Elsewhere(parted, device, software(), None if room.gpu else room.processors)
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # where the corpus and the model are
    given = pickle.dumps((corpus, folder.resolve(), str(Path.cwd())))
    parts = ray.data.from_items([{"corpus": given}]).map_batches(_read, batch_size=1, num_cpus=0, label_selector=here)
    made = parts.map_batches(
        _Measurer, batch_size=1, compute=ray.data.ActorPoolStrategy(size=room.actors), num_cpus=room.processors,
        num_gpus=int(room.gpu), fn_constructor_args=[pickle.dumps((elsewhere, job, None if alone else here))],
    )  # fmt: skip
    try:
        for row in made.iter_rows():
            if row["error"]:
                raise pickle.loads(row["error"])
            yield Made(row["number"], row["start"], row["texts"], row["end"], row["body"] or None)
    except ray.exceptions.RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise RunError(
            f"the Ray cluster could not go on: {lines[-1][:300]}",
            "The same command goes on with the parts that are done.",
        ) from None


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of a cluster."""

    actors: int
    processors: int
    """For each."""
    gpu: bool
    """One for each."""


def _room(resources: Mapping[str, float], device: str, workers: int | None) -> Room:
    """How many actors, and what each takes: a GPU if there are any, otherwise its share of the processors.

    Raises:
        UsageError: There is not enough capacity for that many, or no GPU.
    """
    processors, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if device.startswith("cuda") and not gpus:
        raise UsageError(
            Wording("<device={device}>: the Ray cluster has no GPU", device=device), Wording("Leave <device> out.")
        )
    gpu = bool(gpus) and device != "cpu"
    most = min(gpus, processors) if gpu else processors
    if (workers or 1) > most:
        what = f"{gpus} GPUs and {processors} processors" if gpu else f"{processors} processors"
        raise UsageError(
            Wording("<workers={workers}>: the Ray cluster has {what}", workers=workers or 1, what=what),
            f"Give {most} at most.",
        )
    actors = workers or (most if gpu else max(1, processors // EACH))
    return Room(actors, max(1, processors // actors) if not gpu else 1, gpu)


def _row(chunk: Chunk | None, body: bytes = b"", texts: bytes = b"", error: AttnxError | None = None) -> Row:
    number, start, count, end = (
        (chunk.number, chunk.start, len(chunk.texts), chunk.texts[-1].end) if chunk is not None else (-1, 0, 0, 0)
    )
    pickled = b"" if error is None else pickle.dumps(_plain(error))
    row = {"number": number, "start": start, "texts": count, "end": end, "chunk": texts, "body": body, "error": pickled}
    return {name: [value] for name, value in row.items()}


def _plain(error: AttnxError) -> AttnxError:
    """The error without what cannot be pickled."""
    made: AttnxError = getattr(errors, type(error).__name__, AttnxError)(error.message, error.hint)
    return made


def _read(row: Mapping[str, Any]) -> Iterator[Row]:
    """The parts of a corpus: those that exist already are only counted."""
    corpus, folder, where = pickle.loads(row["corpus"][0])
    try:
        os.chdir(where)
    except OSError as error:
        what = f"the command does not run on the machine of the cluster that it joined: there, {error}"
        yield _row(None, error=RunError(what, "Run it on a machine of the cluster that has the corpus."))
        return
    try:
        for chunk in corpus.chunks():
            yield _row(chunk, texts=b"" if there(folder, chunk) else pickle.dumps(chunk))
    except AttnxError as error:
        yield _row(None, error=error)


class _Measurer:
    """An actor: keeps a session and makes one part after another."""

    def __init__(self, given: bytes) -> None:
        elsewhere, self._job, self._from = pickle.loads(given)
        self._model: Model | None = None
        self._elsewhere: Elsewhere = elsewhere

    def __call__(self, row: Mapping[str, Any]) -> Row:
        """Make one part; an error that a user can fix is returned as a value."""
        out = {name: [row[name][0]] for name in ("number", "start", "texts", "end", "error")}
        body = b""
        if row["chunk"][0]:
            try:
                if self._model is None:
                    self._model = self._elsewhere.open(None if self._from is None else self._fetch)
                body = made_of(self._model, self._job, pickle.loads(row["chunk"][0]))
            except AttnxError as error:
                out["error"] = [pickle.dumps(_plain(error))]
        return {**out, "body": [body]}

    def _fetch(self, path: Path) -> Any:
        """The bytes of a file on the machine where the command runs."""
        import ray

        read = ray.remote(_content).options(num_cpus=0, label_selector=self._from)
        return ray.get(read.remote(path))


def _content(path: Path) -> Any:
    """The bytes of a file."""
    import numpy as np

    return np.fromfile(path, np.uint8)
