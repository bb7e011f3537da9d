"""Models from the Hugging Face Hub: only the files that are needed, downloaded into the Hub's own cache."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

from attnx.catalog.models import companion_names, pick
from attnx.errors import ModelError, RunError, UsageError, lacks_memory
from attnx.wording import Wording

_NAME = re.compile(
    r"(?P<repo>(?:[A-Za-z0-9][\w.-]*/)?[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<file>[^:\\]+\.onnx))?", re.ASCII
)
_BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.txt", "vocab.json", "merges.txt", "preprocessor_config.json", "processor_config.json", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip
"""Files fetched besides the graph and its weights, from the top and from the graph's folder."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Name:
    """A model's name on the Hub."""

    repo: str
    """ORG/NAME."""
    revision: str = "main"
    file: str | None = None
    """A certain .onnx file of it."""

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        return f"{self.repo}{at}{'' if self.file is None else f':{self.file}'}"


@dataclass(frozen=True, slots=True)
class Pulled:
    """What was downloaded."""

    name: str
    """As -m takes it."""
    folder: Path
    """The snapshot in the cache."""
    revision: str
    """The commit."""
    files: Mapping[str, int]
    """Each file and its size in bytes."""


def parse_name(text: str, *, alone: bool = False) -> Name | None:
    """Read ORG/NAME, ORG/NAME@REVISION or ORG/NAME:onnx/model_q4.onnx; None for anything else.

    Args:
        text: The name.
        alone: Read NAME as well: models older than organisations have no other name ("bert-base-uncased").
    """
    match = _NAME.fullmatch(text)
    if match is None or ".." in text or "--" in match["repo"] or not (alone or "/" in match["repo"]):
        return None
    return Name(match["repo"], match["revision"] or "main", match["file"])


def cache_root() -> Path:
    """The Hub's cache on this machine (HF_HUB_CACHE, HF_HOME).

    Raises:
        UsageError: The Hub's client cannot read a variable of the environment.
    """
    try:
        from huggingface_hub import constants
    except ValueError as error:  # it reads its settings when it is imported
        raise UsageError(
            f"the Hub's client cannot read its settings in the environment: {error}",
            "Check the variables that begin with HF_ (HF_HUB_DOWNLOAD_TIMEOUT, ...), or unset them.",
        ) from None

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where the cache keeps a repository."""
    return cache_root() / f"models--{repo.replace('/', '--')}"


def snapshot(name: Name) -> Path | None:
    """The folder of a revision in the cache; None where it is not there."""
    folder = repo_folder(name.repo)
    ref = folder / "refs" / name.revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else name.revision
    found = folder / "snapshots" / commit
    return found if found.is_dir() else None


def cached(name: Name) -> Path:
    """The folder of a model in the Hub's cache.

    Raises:
        ModelError: It is not there; the hint says how to pull it.
    """
    found = snapshot(name)
    revision = "" if name.revision == "main" else ", revision={revision}"
    file = "" if name.file is None else ", file={file}"
    pulling = "<attnx.catalog.hub.pull(Name({repo}" + revision + file + "))>."

    def how(first: str) -> Wording:
        return Wording(first + pulling, repo=name.repo, revision=name.revision, file=name.file)

    if found is None:
        raise ModelError(
            f"there is no file or folder {name}, and no such model in the Hub's cache",
            how("Check the path. If it is a name on the Hub: "),
        )
    if name.file is not None and not (found / name.file).is_file():
        raise ModelError(f"the Hub's cache has {name.repo}, without {name.file}", how("Pull it: "))
    if not any(found.rglob("*.onnx")):
        raise ModelError(f"the Hub's cache has {name.repo}, without an .onnx file", how("Pull it: "))
    return found


def pull(name: Name, say: Say = lambda _: None) -> Pulled:
    """Download a model, or the parts of it that are missing.

    After a dropped connection the Hub's client resumes, several times over; a file that it gives up on starts again
    with the next pull, and complete files are kept.

    Args:
        name: What to pull.
        say: Called with a text on what is being done.

    Raises:
        UsageError: The repository has several models, or not the file that was asked for.
        ModelError: No such repository or revision, no right to it, no ONNX file in it, or what came is damaged.
        RunError: The Hub cannot be reached, or the disk is full.
    """
    cache_root()
    from huggingface_hub import HfApi

    if not sys.stderr.isatty():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT") or None
    with _clear_errors(name):
        info = HfApi(endpoint=endpoint).model_info(name.repo, revision=name.revision, files_metadata=True)
    commit = str(info.sha)
    listed: dict[str, Any] = {s.rfilename: s for s in info.siblings or []}
    graphs = _graphs(name, listed)
    files: dict[str, int] = {}

    def fetch(file: str) -> Path:
        from huggingface_hub import hf_hub_download

        size = listed[file].size
        say(f"{file}{f' ({size / 1e6:.1f} MB)' if size else ''}")
        with _clear_errors(name, file):
            at = Path(hf_hub_download(name.repo, file, revision=commit, endpoint=endpoint))
        _verify(at, listed[file])
        files[file] = at.stat().st_size
        return at

    folders = dict.fromkeys(["", *(g.rpartition("/")[0] for g in graphs)])
    wanted = [f"{folder}/{small}" if folder else small for folder in folders for small in _BESIDE]
    for file in (f for f in wanted if f in listed):
        fetch(file)
    for graph in graphs:
        for weights in _external(fetch(graph), graph):
            if weights not in listed:
                raise ModelError(
                    f"{graph} keeps weights in {weights}, and the repository has no such file",
                    Wording("Tell its publisher; <model.find()> works without the weights."),
                )
            fetch(weights)
    _remember(name, commit)
    chosen = Name(name.repo, name.revision, name.file)
    return Pulled(str(chosen), repo_folder(name.repo) / "snapshots" / commit, commit, files)


def _graphs(name: Name, listed: Mapping[str, Any]) -> list[str]:
    """The .onnx files that make up the model: one, or a decoder with its companions."""
    models = [f for f in listed if f.endswith(".onnx")]
    if not models:
        raise ModelError(
            f"{name.repo} has no .onnx file",
            Wording(
                "<attnx.catalog.export.export({name!r}, {out!r})> makes one; onnx-community on the Hub has many.",
                name=name.repo,
                out=f"{name.repo.rpartition('/')[2]}-onnx",
            ),
        )
    if name.file is not None and name.file not in models:
        near = get_close_matches(name.file, models, 3)
        raise UsageError(f"{name.repo} has no file {name.file}", f"It has {', '.join(near or sorted(models)[:8])}.")
    main = name.file or pick(models)
    if main is None:
        sizes = [f"{f} ({(listed[f].size or 0) / 1e6:.0f} MB)" for f in sorted(models)]
        raise UsageError(
            f"{name.repo} has several models", Wording("Choose one with <file>: {sizes}.", sizes=", ".join(sizes))
        )
    folder, _, file = main.rpartition("/")
    found = [main]
    for candidates in companion_names(file):
        places = (f"{folder}/{c}" if folder else c for c in candidates)
        found += [p for p in places if p in listed][:1]
    return found


def _external(graph: Path, name: str) -> list[str]:
    """Files in the repository in which a graph keeps weights outside itself."""
    from attnx.graph.load.load import SELF, load

    loaded = load(graph)
    folder = name.rpartition("/")[0]
    locations = sorted({*loaded.files, *loaded.missing} - {SELF})
    return [f"{folder}/{location}" if folder else location for location in locations]


def _verify(path: Path, listed: Any) -> None:
    """Check downloads against the hashes that the Hub lists: SHA-256 for large files, git's SHA-1 for others.

    Raises:
        ModelError: They differ; the file is removed, so that it is fetched again.
    """
    large = getattr(listed, "lfs", None)
    if large is not None:
        digest, wanted = sha256(), large.sha256
    elif listed.blob_id:
        digest, wanted = sha1(usedforsecurity=False), listed.blob_id
        digest.update(f"blob {path.stat().st_size}\0".encode())
    else:
        return
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != wanted:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ModelError(
            f"{listed.rfilename} arrived damaged: its hash is {digest.hexdigest()[:12]}, the Hub lists {wanted[:12]}",
            "It was removed. Pull again; if it stays so, a proxy changes what comes through.",
        )


def _remember(name: Name, commit: str) -> None:
    """Record which commit a branch or tag is, as the Hub's own client does."""
    if name.revision == commit:
        return
    ref = repo_folder(name.repo) / "refs" / name.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit, encoding="utf-8")


@contextmanager
def _clear_errors(name: Name, file: str = "") -> Iterator[None]:
    """Turn exceptions of the Hub's client into errors that say what to do."""
    from huggingface_hub import errors

    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    what = f"{name.repo}{f' ({file})' if file else ''}"
    try:
        yield
    except errors.GatedRepoError:
        raise ModelError(
            f"{name.repo} is gated: its terms must be accepted first",
            f"Open {endpoint}/{name.repo}, accept them, and set HF_TOKEN (or run `hf auth login`).",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"the Hub has no model {name.repo}, or it is private", "Check the name; private ones need HF_TOKEN."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{name.repo} has no revision {name.revision}", "Give a branch, a tag or a commit.") from None
    except errors.OfflineModeIsEnabled:
        raise RunError(
            "HF_HUB_OFFLINE is set, so nothing is pulled",
            Wording("Unset it, or use what <attnx.catalog.models.bundled()> lists."),
        ) from None
    except errors.EntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(error, errors.LocalEntryNotFoundError) and cause is not None:
            raise _unreachable(endpoint, what, cause) from None
        raise ModelError(f"{what} is listed, and the Hub does not have it", "Try again later.") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise RunError(f"{endpoint} answered {status} for {what}", "Try again later.") from None
    except OSError as error:
        if error.errno == 28:
            raise RunError(f"the disk is full: {what} did not fit", f"Make room in {cache_root()}.") from None
        raise _unreachable(endpoint, what, error) from None
    except Exception as error:  # httpx's errors have no base class in common with others
        if lacks_memory(error):
            raise
        raise _unreachable(endpoint, what, error) from None


def _unreachable(endpoint: str, what: str, error: BaseException) -> RunError:
    said = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    return RunError(
        f"{what} could not be fetched from {endpoint}: {said}",
        "Check the network, HF_ENDPOINT and the proxy. Pull again: complete files are kept.",
    )
