"""A tokenizer from the files that models come with: tokenizer.json, vocab.txt, or vocab.json and merges.txt."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnx.errors import ModelError, lacks_memory
from attnx.silence import quiet
from attnx.tokens.encode import Tokenizer
from attnx.tokens.files import (
    MERGES,
    VOCAB_JSON,
    VOCAB_TXT,
    find_limit,
    find_tokenizer_file,
    read_config,
    read_json,
    token_text,
)
from attnx.tokens.pieces import Spelling
from attnx.wording import Wording

_NAMED = ("pad_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token", "unk_token")


def load_tokenizer(path: str | Path, *, model: str | Path | None = None) -> Tokenizer:
    """Loads a tokenizer from files, without network.

    Args:
        path: A tokenizer file (tokenizer.json under any name, vocab.txt, vocab.json), a folder that holds one, or the
            model file beside it. See `attnx.tokens.files.find_tokenizer_file` for the order.
        model: The model's file or folder, whose config.json limits the length, when `path` lies elsewhere.

    Returns:
        The tokenizer. What had to be guessed is in its `notes`. Truncation and padding set in a tokenizer.json
        are left out: they serve batches of embeddings, and would show padding, or hide text. So is what makes
        each splitting another one.

    Raises:
        InputError: The path does not exist.
        ModelError: No tokenizer lies there, it is of a kind that cannot be read (sentencepiece), or it is damaged.
    """
    file = find_tokenizer_file(Path(path))
    settings = {**read_config(file, "special_tokens_map.json"), **read_config(file, "tokenizer_config.json")}
    roles = {role: text for role in _NAMED if (text := token_text(settings.get(role)))}
    notes: tuple[str, ...] = ()
    with _clear_errors(file):
        if file.name == VOCAB_JSON:
            raw, notes = _byte_level_bpe(file, settings, roles)
        elif file.suffix == ".txt":
            from attnx.tokens.residues import ROLES, is_of_residues, residues

            vocabulary = _listed(file)
            if is_of_residues(vocabulary, settings):
                roles = {**ROLES, **roles}
                raw = residues(file, vocabulary, roles)
            else:
                raw, notes = _wordpiece(file, vocabulary, settings, roles)
        else:
            from tokenizers import Tokenizer as Raw

            with file.open("rb") as content:
                marked = content.read(len(BOM_UTF8)) == BOM_UTF8  # the package takes it for damage
                raw = Raw.from_buffer(content.read()) if marked else Raw.from_file(str(file))
        padding = raw.padding or {}
        raw.no_padding()
        raw.no_truncation()
        notes += _settle(raw.model)
    limits = [limit for place in (file, model) if place and (limit := find_limit(Path(place)))]
    return Tokenizer(
        raw,
        path=file,
        limit=min(limits, default=None),
        spelling=_spelling(raw),
        roles=roles,
        pad=padding.get("pad_token"),
        notes=notes,
    )


def _settle(model: Any) -> tuple[str, ...]:
    """Switch off what splits a text differently each time, as in training (Provilkov et al. 2020; Kudo 2018)."""
    found = [(name, value) for name in ("dropout", "alpha") if (value := getattr(model, name, None))]
    for name, _ in found:
        setattr(model, name, None)
    return tuple(f"the tokenizer's {name} of {value:g} is for training: left out" for name, value in found)


@contextmanager
def _clear_errors(file: Path) -> Iterator[None]:
    """Turns errors of the tokenizers package, including panics of its Rust code, into a ModelError.

    What a panic prints is kept out.
    """
    try:
        with quiet(errors=True):
            yield
    except (ModelError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is not an Exception
        if lacks_memory(error):
            raise
        if isinstance(error, ImportError):
            raise ModelError(
                f"the tokenizers package cannot be loaded: {error}", "Install it again: pip install tokenizers"
            ) from error
        raise ModelError(
            f"{str(file)!r} is not a tokenizer that can be read: {error}",
            Wording("Fetch it again, or give another with <tokenizer=>[, or the token ids with <tokens>]."),
        ) from error


def _spelling(raw: Any) -> Spelling:
    """How the vocabulary writes text, from the tokenizer's own parts."""
    parts = [part for part in (raw.decoder, raw.pre_tokenizer, raw.normalizer) if part is not None]
    states = [state for part in parts for state in _flatten(json.loads(part.__getstate__()))]
    kinds = {state.get("type") for state in states}
    spaces = [state["replacement"] for state in states if state.get("type") == "Metaspace"]
    # Sequence decoders of the sentencepiece family spell it out: Replace "▁" by " ".
    spaces += [
        state["pattern"]["String"]
        for state in states
        if state.get("type") == "Replace"
        and state.get("content") == " "
        and "▁" in state.get("pattern", {}).get("String", "")
    ]
    return Spelling(
        byte_level="ByteLevel" in kinds,
        space=spaces[0] if spaces else "",
        byte_fallback="ByteFallback" in kinds,
        word_end=getattr(raw.model, "end_of_word_suffix", None) or "",
    )


def _flatten(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield state
    for key in ("decoders", "pretokenizers", "normalizers"):
        for part in state.get(key, ()):
            yield from _flatten(part)


def _listed(file: Path) -> dict[str, int]:
    """The ids of a list of pieces, one per line."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{str(file)!r} is not UTF-8 text: {error}", "Fetch the file again.") from error
    return {line.rstrip("\r"): i for i, line in enumerate(lines) if line.rstrip("\r")}


def _wordpiece(
    file: Path, vocabulary: Mapping[str, int], settings: Mapping[str, Any], roles: Mapping[str, str]
) -> tuple[Any, tuple[str, ...]]:
    """BERT's tokenizer from its list of pieces."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    names = {
        role: roles.get(role, f"[{role[:3].upper()}]") for role in ("unk_token", "cls_token", "sep_token", "pad_token")
    }
    names["mask_token"] = roles.get("mask_token", "[MASK]")
    if missing := [names[role] for role in ("unk_token", "cls_token", "sep_token") if names[role] not in vocabulary]:
        raise ModelError(
            f"{str(file)!r} is not a WordPiece vocabulary: {', '.join(missing)} is not in it",
            Wording(
                f"A {VOCAB_TXT} lists one piece a line. Give another with <tokenizer=>[, or the ids with <tokens>]."
            ),
        )
    notes: tuple[str, ...] = ()
    lower = settings.get("do_lower_case")
    if not isinstance(lower, bool):
        capitals = sum(piece != piece.lower() and piece not in names.values() for piece in vocabulary)
        # Apart from [unused1] and special names, a lower-case vocabulary has no capitals; a cased one has thousands.
        lower = capitals * 100 < len(vocabulary)
        notes = (
            f"nothing says whether {VOCAB_TXT} wants lower case (tokenizer_config.json: do_lower_case); guessed "
            f"{'yes' if lower else 'no'}, since {capitals} of its {len(vocabulary)} pieces have capitals",
        )
    raw = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=names["unk_token"]))
    chinese = settings.get("tokenize_chinese_chars")
    raw.normalizer = normalizers.BertNormalizer(
        lowercase=lower,
        handle_chinese_chars=chinese if isinstance(chinese, bool) else True,
        strip_accents=accents if isinstance(accents := settings.get("strip_accents"), bool) else None,
    )
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    first, last = names["cls_token"], names["sep_token"]
    raw.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(name, vocabulary[name]) for name in dict.fromkeys((first, last))],
    )
    raw.add_special_tokens([AddedToken(n, normalized=False) for n in dict.fromkeys(names.values()) if n in vocabulary])
    return raw, notes


def _byte_level_bpe(file: Path, settings: Mapping[str, Any], roles: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
    """GPT-2's tokenizer, or RoBERTa's, from vocabulary and merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = read_json(file)
    if not isinstance(vocabulary, dict) or not all(isinstance(n, int) for n in vocabulary.values()):
        raise ModelError(f"{str(file)!r} should map pieces to ids", "Fetch the file again.")
    if any(piece.endswith("</w>") for piece in vocabulary):
        raise ModelError(
            f"{str(file)!r} marks word ends with </w>: this is not a byte-level vocabulary like GPT-2's",
            Wording("Give the model's tokenizer.json with <tokenizer=>[, or the token ids with <tokens>]."),
        )
    raw = Tokenizer(models.BPE.from_file(str(file), str(file.with_name(MERGES))))
    prefix = settings.get("add_prefix_space") is True
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    raw.decoder = decoders.ByteLevel()
    # RoBERTa and BART put <s> ... </s> around a text, GPT-2 nothing; both sets of names are in the vocabulary itself.
    first, last = roles.get("cls_token", "<s>"), roles.get("sep_token", "</s>")
    wraps = first in vocabulary and last in vocabulary
    if wraps:
        raw.post_processor = processors.RobertaProcessing(
            (last, vocabulary[last]), (first, vocabulary[first]), trim_offsets=True, add_prefix_space=prefix
        )
    else:
        raw.post_processor = processors.ByteLevel(trim_offsets=True)
    known = [*roles.values(), "<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    special = [name for name in dict.fromkeys(known) if name in vocabulary]
    raw.add_special_tokens([AddedToken(name, lstrip=name == "<mask>", normalized=False) for name in special])
    around = f"{first} and {last} are put around a text" if wraps else "nothing is put around a text"
    return raw, (
        f"{VOCAB_JSON} and {MERGES} do not say how text is split and wrapped: split as GPT-2 does, and {around}",
    )
