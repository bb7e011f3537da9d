"""Where a model's tokenizer files lie, what its configuration says about them, and reading both with clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnx.errors import InputError, ModelError
from attnx.tokens.config import Config
from attnx.wording import Wording

TOKENIZER, VOCAB_TXT, VOCAB_JSON, MERGES = "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"
_OTHER_KINDS = ("*.spm", "spiece.model", "sentencepiece*.model", "tokenizer.model", "*.tiktoken", "tekken.json")
_LARGEST_CONFIG = 32 << 20
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length", "seq_length")
_UNBOUNDED = 10**8
"""Tokenizer configurations write 1e30 for "no limit"."""


def find_tokenizer_file(path: Path) -> Path:
    """The file to load a tokenizer from.

    Args:
        path: A tokenizer file, a folder, or a model file. Of a folder, it and its `tokenizer/` are searched, and its
            parent when the folder is called `onnx`, as on the Hub. tokenizer.json comes before vocab.txt, before
            vocab.json with merges.txt.

    Returns:
        tokenizer.json, vocab.txt, or vocab.json (with merges.txt beside it).

    Raises:
        InputError: The path does not exist.
        ModelError: No tokenizer lies there, or only of a kind that cannot be read.
    """
    if not path.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}", "Give the path of a tokenizer.json or its folder."
        )
    if path.is_file() and path.suffix in {".json", ".txt"}:
        if path.name == MERGES:
            path = path.with_name(VOCAB_JSON)
        if path.name == VOCAB_JSON and not path.with_name(MERGES).is_file():
            raise ModelError(
                f"{str(path)!r} needs {MERGES} beside it", "Put both files in one folder, or tokenizer.json."
            )
        return path
    if path.is_file() and path.suffix in {".model", ".spm", ".tiktoken"}:
        raise _unreadable(path)
    folders = search_folders(path)
    for names in ((TOKENIZER,), (VOCAB_TXT,), (VOCAB_JSON, MERGES)):
        for folder in folders:
            if all((folder / name).is_file() for name in names):
                return folder / names[0]
    for folder in folders:
        for pattern in _OTHER_KINDS:
            if found := sorted(folder.glob(pattern)):
                raise _unreadable(found[0])
    raise ModelError(
        f"there is no tokenizer in {str(folders[0])!r}: no {TOKENIZER}, {VOCAB_TXT}, or {VOCAB_JSON} with {MERGES}",
        Wording(
            "Give one with <tokenizer=>[, or the token ids themselves with "
            "<tokens=attnx.tokens.from_ids([101, 2023, 102])>]."
        ),
    )


def _unreadable(path: Path) -> ModelError:
    return ModelError(
        f"{str(path)!r} is a sentencepiece or tiktoken model, which cannot be read as it is",
        Wording(
            'Convert it once where transformers is installed: python -c "from transformers import AutoTokenizer as T; '
            "T.from_pretrained('FOLDER').save_pretrained('FOLDER')\" writes tokenizer.json."
            "[ Or give the ids: <tokens>.]"
        ),
    )


def search_folders(path: Path) -> tuple[Path, ...]:
    """The folders in which a model's tokenizer and configuration may lie, nearest first."""
    folder = path if path.is_dir() else path.parent
    folders = [folder, folder / "tokenizer"]
    if folder.resolve().name in {"onnx", "tokenizer"}:
        folders.append(folder.resolve().parent)
    return tuple(folders)


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ModelError: It cannot be read, is not JSON, or is larger than any such file is.
    """
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ModelError(
                f"{str(path)!r} is larger than {_LARGEST_CONFIG >> 20} MiB: this is not what it is named for",
                "Give the tokenizer's own files.",
            )
        content = path.read_bytes()
        found = json.loads(content)
        if b"\\u" in content:  # JSON can hold a lone surrogate, which cannot be passed on
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{str(path)!r} cannot be read as JSON: {error}", "Fetch the file again, or remove it."
        ) from error


def read_config(path: Path, name: str) -> Config:
    """`name` (config.json and the like) from the nearest of `search_folders`; empty when there is none.

    Raises:
        ModelError: It is there, but is not a JSON object.
    """
    for folder in search_folders(path):
        if (folder / name).is_file():
            content = read_json(folder / name)
            if not isinstance(content, dict):
                raise ModelError(
                    f"{str(folder / name)!r} should hold a JSON object", "Fetch the file again, or remove it."
                )
            return Config(content, repr(str(folder / name)))
    return Config(where=name)


def read_processor(path: Path, part: str) -> Config:
    """What preprocessor_config.json says, or processor_config.json's part of it; empty where neither is there.

    Args:
        path: The model's file or folder.
        part: "feature_extractor" or "image_processor": the part that is meant, where a file holds several.

    Raises:
        ModelError: One of them is there, but is not a JSON object.
    """
    config = read_config(path, "preprocessor_config.json")
    nested = config.part(part)
    if nested is not None or config:
        return config if nested is None else nested
    return read_config(path, "processor_config.json").part(part) or config


def shaping_files(tokenizer: Path, model: Path) -> list[Path]:
    """Every file that decides what tokens a text becomes: the tokenizer's own, and the configurations beside it.

    Args:
        tokenizer: The file that the tokenizer was read from.
        model: The model's file; its configuration may bound the length.
    """
    own = [tokenizer, *([tokenizer.with_name(MERGES)] if tokenizer.name == VOCAB_JSON else [])]
    for place in (tokenizer, model):
        for name in ("special_tokens_map.json", "tokenizer_config.json", "config.json"):
            own += [folder / name for folder in search_folders(place) if (folder / name).is_file()][:1]
    return list(dict.fromkeys(own))


def find_limit(path: Path) -> int | None:
    """The most tokens that the model takes at once, special tokens included; None where no file says.

    It is the smaller of config.json's number of positions (its text part's, where it has one) and
    tokenizer_config.json's model_max_length. A tokenizer.json's own truncation is not a limit of the model.

    Args:
        path: The model's file or folder, or its tokenizer file.
    """
    config = read_config(path, "config.json")
    parts = [config, *(part for key in ("text_config", "text_config_dict") if (part := config.part(key)) is not None)]
    found = [(part, key) for part in reversed(parts) for key in _POSITIONS if key in part][:1]
    tokenizer = read_config(path, "tokenizer_config.json")
    found += [(tokenizer, key) for key in ("model_max_length",) if key in tokenizer]
    limits = [_limit(config, key) for config, key in found]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(config: Config, key: str) -> int | None:
    """A number of tokens; None where it means no limit: missing, less than one, or absurdly many."""
    value = config[key]
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < _UNBOUNDED:
        return None
    return config.maybe_whole(key, least=1)


def token_text(entry: object) -> str | None:
    """The text of a special token as configurations write it: a string, or an object with `content`."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) and entry else None
