"""The models on this machine, bundled and in the Hub's cache, and what each one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnx.catalog.locate import locate
from attnx.catalog.models import Location, bundled, companion_names, of_file, pick
from attnx.errors import AttnxError
from attnx.feed.inputs import is_past
from attnx.graph.load.load import SELF, Loaded, load, tensors
from attnx.records import Site
from attnx.session.ort import Slot

_BITS = {
    1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16", 2: "int8", 3: "int8", 21: "int4", 22: "int4",
    **dict.fromkeys((17, 18, 19, 20), "fp8"), 23: "fp4",
}  # fmt: skip
"""Element type of weights -> its name."""
_INTEGER = (
    "MatMulInteger",
    "QLinearMatMul",
    "QAttention",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "ConvInteger",
)


@dataclass(frozen=True, slots=True)
class Shelved:
    """One model."""

    name: str
    """The name that -m takes."""
    source: str
    """ "bundled" or "Hub"."""
    size: int
    """Bytes on disk: graphs, external data, tokenizer."""
    layers: tuple[int, ...] = ()
    """Self-attention layers: of the encoder and of the decoder, if there are both."""
    heads: int | None = None
    """Heads per layer; None if layers differ or the number is not known."""
    kind: str = ""
    """ "encoder", "decoder", "encoder-decoder", ..."""
    precision: str = ""
    """ "fp32", "fp16", "int8", "int4", ..."""
    revision: str = ""
    """The commit, for a model from the Hub."""
    path: Path = Path()
    problem: str = ""
    """Why it cannot be read, if so."""


def precision(loaded: Loaded) -> str:
    """How a model's weights are stored, by most of their bytes; "int8" also if only the products are integer."""
    held: Counter[str] = Counter()
    for tensor in tensors(loaded.proto):
        count = 1
        for dim in tensor.dims:
            count *= dim
        if tensor.data_type in _BITS and count >= 256:
            kind = _BITS[tensor.data_type]
            held[kind] += count * int(kind.lstrip("bfpint"))
    packed = [n for n in loaded.proto.graph.node if n.op_type in ("MatMulNBits", "GatherBlockQuantized", *_INTEGER)]
    bits = {a.i for n in packed if n.op_type not in _INTEGER for a in n.attribute if a.name == "bits"}
    if bits:
        return "int" + "/".join(str(b) for b in sorted(bits))
    if any(node.op_type in _INTEGER for node in packed):
        return "int8"
    return held.most_common(1)[0][0] if held else ""


def kind_of(sites: Sequence[Site], slots: Sequence[Slot], note: str | None = None) -> str:
    """What a model is, in words: by its sites and its inputs."""
    own = [s for s in sites if s.kind == "self"]
    cross = any(s.kind == "cross" for s in sites)
    encoders = any(s.component == "encoder" for s in own)
    pictures = any(len(s.shape) == 4 and not is_past(s) and s.type.startswith("tensor(float") for s in slots)
    if not sites:
        return "recurrent" if note else "no attention"
    if note and not own:
        return "recurrent, with attention"
    if cross:
        kind = "encoder-decoder" if encoders else "decoder"
    else:
        kind = "decoder" if own and all(s.causal is not False for s in own) and not pictures else "encoder"
    return f"{kind}, pictures" if pictures else kind


def describe(place: Location, source: str, revision: str = "") -> Shelved:
    """What a model is, or what is wrong with it if it cannot be read."""
    from attnx.session.session_pool import SessionPool

    paths = [p for p in (place.path, place.encoder, place.with_past) if p is not None]
    try:
        loads = [load(path) for path in paths]
    except AttnxError as error:
        return Shelved(place.name, source, _size(paths), revision=revision, path=place.path, problem=error.message)
    size = _size([*paths, *(f for one in loads for key, f in one.files.items() if key != SELF), *_beside(place)])
    missing = next((why for one in loads for why in one.missing.values()), "")
    try:
        found = SessionPool(place.path, "auto").find()
        encoder = SessionPool(place.encoder, "auto").find().sites if place.encoder is not None else ()
        sites = (*encoder, *found.sites)
    except AttnxError as error:
        return Shelved(place.name, source, size, revision=revision, path=place.path, problem=error.message)
    own = [s for s in sites if s.kind == "self"]
    in_encoder = len(encoder) or sum(s.component == "encoder" for s in own)
    layers = tuple(n for n in (in_encoder, len(own) - in_encoder) if n)
    heads = {s.heads for s in own}
    return Shelved(
        place.name,
        source,
        size,
        layers,
        heads.pop() if len(heads) == 1 else None,
        "encoder-decoder" if place.encoder is not None else kind_of(sites, found.inputs, found.note),
        precision(loads[0]),
        revision,
        place.path,
        missing,
    )


def _size(paths: Sequence[Path]) -> int:
    real = {p.resolve() for p in paths}
    return sum(p.stat().st_size for p in real if p.is_file())


def _beside(place: Location) -> list[Path]:
    return [] if place.tokenizer is None else [p for p in place.tokenizer.iterdir() if p.suffix in (".json", ".txt")]


def list_models() -> list[Shelved]:
    """Every model that can be used by name: bundled first, then those in the Hub's cache."""
    found = [describe(locate(name), "bundled") for name in bundled()]
    return found + [describe(place, "Hub", commit) for place, commit in cached_models()]


def cached_models() -> Iterator[tuple[Location, str]]:
    """The models in the Hub's cache that have ONNX files, and the commit of each."""
    from attnx.catalog.hub import cache_root

    root = cache_root()
    for repo in sorted(root.glob("models--*")) if root.is_dir() else []:
        name = "/".join(repo.name.split("--")[1:]) if repo.name.count("--") <= 2 else ""
        refs = {
            ref.relative_to(repo / "refs").as_posix(): ref.read_text(encoding="utf-8").strip()
            for ref in sorted((repo / "refs").rglob("*"))
            if ref.is_file()
        }
        for at in sorted((repo / "snapshots").iterdir()) if name and (repo / "snapshots").is_dir() else []:
            branches = sorted((ref for ref, commit in refs.items() if commit == at.name), key=lambda r: r != "main")
            revision = branches[0] if branches else at.name
            shown = name if revision == "main" else f"{name}@{revision}"
            for place in _in_snapshot(at, shown):
                yield place, at.name


def _in_snapshot(folder: Path, shown: str) -> list[Location]:
    """Each model of a snapshot; a decoder's companion files belong to it."""
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.onnx"))
    main = pick(files)
    theirs: set[str] = set()
    for file in files:
        at, _, own = file.rpartition("/")
        for names in companion_names(own):
            theirs |= {f"{at}/{n}" if at else n for n in names}
    alone = [f for f in files if f not in theirs or f == main]
    return [of_file(folder / f, shown if f == main else f"{shown}:{f}") for f in alone]
