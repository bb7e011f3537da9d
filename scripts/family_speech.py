"""Whisper with bytes, marks of time and alignment heads, in one, two and three files, fused and in 8 bits.

The truth is transformers' own: `generate(..., return_token_timestamps=True)` on sounds within a piece and beyond one,
with a prompt and without; the words are those of its tokenizer.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from family_parts import export, sharpen
from family_sounds import speech

SECONDS = 2
TEXTS = ["the cat sat on the mat, and the dog sat on the cat. Yes! \"So it is,\" he said (twice): 'no'.",
         "naïve café 猫がいる 고양이 🦙 - ¿qué?"]  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|translate|>", "<|transcribe|>",
           "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]  # fmt: skip
CASES = ((1.3, None), (2.0, None), (0.77, "the cat sat"), (7.3, None), (5.0, "the dog"))
"""Seconds of each sound, and the prompt."""
COUNT = 24


def _tokenizer() -> Any:
    """Bytes and a few merges, as Whisper's own; its marks of time stand last."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, show_progress=False, initial_alphabet=alphabet, special_tokens=[])
    raw.train_from_iterator(TEXTS * 3, trainer)
    raw.add_special_tokens(SPECIAL)
    raw.add_tokens([f"<|{at * 0.02:.2f}|>" for at in range(SECONDS * 50 + 1)])
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=end, eos_token=end, pad_token=end, unk_token=end)


def _settings(tokens: Any) -> dict[str, Any]:
    """What generation_config.json says of a multilingual Whisper on the Hub."""
    number = tokens.convert_tokens_to_ids
    never = [number(name) for name in SPECIAL[1:-1]]
    return {
        "decoder_start_token_id": number("<|startoftranscript|>"), "is_multilingual": True, "task": "transcribe",
        "lang_to_id": {name: number(name) for name in SPECIAL[2:5]}, "return_timestamps": False,
        "task_to_id": {name: number(f"<|{name}|>") for name in ("transcribe", "translate")},
        "no_timestamps_token_id": number("<|notimestamps|>"), "prev_sot_token_id": number("<|startofprev|>"),
        "suppress_tokens": [1, 2, 7, *never], "begin_suppress_tokens": [220, number("<|endoftext|>")],
        "max_initial_timestamp_index": 20, "alignment_heads": [[0, 1], [1, 0], [1, 1]],
    }  # fmt: skip


def _timed(model: Any, tokens: Any, ears: Any, samples: Any, prompt: str | None) -> tuple[list[int], list[float]]:
    """Tokens and their times by transformers; of a sound beyond one piece, in windows."""
    long = len(samples) > SECONDS * 16_000
    whole = {"truncation": False, "padding": "longest"} if long else {}
    heard = ears(samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **whole)
    more: dict[str, Any] = {} if long else {"force_unique_generate_call": True, "return_dict_in_generate": True}
    if prompt is not None:
        before = tokens(f" {prompt}", add_special_tokens=False)["input_ids"]
        more["prompt_ids"] = torch.tensor([tokens.convert_tokens_to_ids("<|startofprev|>"), *before])
    with torch.no_grad():
        out = model.generate(
            heard.input_features, attention_mask=heard.attention_mask, return_token_timestamps=True,
            return_timestamps=long, max_new_tokens=COUNT, return_segments=long, do_sample=False, num_beams=1, **more,
        )  # fmt: skip
    if long:
        parts = out["segments"][0]
        return [int(n) for p in parts for n in p["tokens"]], [float(t) for p in parts for t in p["token_timestamps"]]
    ids, ends = out["sequences"][0].tolist(), out["token_timestamps"][0].tolist()
    start = ids.index(tokens.convert_tokens_to_ids("<|notimestamps|>")) + 1
    return ids[start:], ends[start:]


def _words(tokens: Any, ids: list[int], language: str) -> list[list[Any]]:
    """Words and the tokens that each is made of, by transformers' rules."""
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    class Decodes:
        eos_token_id = tokens.eos_token_id
        language = None

        def decode(self, some: list[int], **_: Any) -> str:
            return tokens.decode(some, clean_up_tokenization_spaces=False)

    texts, _, places = _combine_tokens_into_words(Decodes(), ids, language)
    return [[text, place] for text, place in zip(texts, places, strict=True)]


def _whisper(folder: Path, task: str, **more: Any) -> Any:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    tokens = _tokenizer()
    end = tokens.eos_token_id
    config = WhisperConfig(
        vocab_size=len(tokens), d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=SECONDS * 50,
        max_target_positions=64, pad_token_id=end, bos_token_id=end, eos_token_id=end,
        decoder_start_token_id=tokens.convert_tokens_to_ids("<|startoftranscript|>"), suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    ears = WhisperFeatureExtractor(chunk_length=SECONDS)
    source = sharpen(WhisperForConditionalGeneration(config), 4)
    model = export(source, folder, task, tokens, ears, nb_max_frames=100 * SECONDS, **more)
    own = _settings(tokens)
    told = {**json.loads((folder / "generation_config.json").read_text(encoding="utf-8")), **own}
    (folder / "generation_config.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for name, value in own.items():
        setattr(model.generation_config, name, value)
    cases = []
    for seconds, prompt in CASES:
        with tempfile.TemporaryDirectory() as apart:
            samples = speech(Path(apart) / "speech.wav", seconds)
        ids, ends = _timed(model, tokens, ears, samples, prompt)
        text = [n for n in ids if n < tokens.eos_token_id]
        words = {name: _words(tokens, text, name) for name in ("english", "chinese")}
        cases.append({"seconds": seconds, "prompt": prompt, "ids": ids, "ends": ends, "words": words})
    speech(folder / "speech.wav", CASES[0][0])
    about = {"speech": cases, "count": COUNT}
    (folder / "about.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return model


def words_two(folder: Path) -> None:
    """Two files, without a cache: small enough to ship with the tests."""
    _whisper(folder, "automatic-speech-recognition")
    for name in ("vocab.json", "merges.txt", "normalizer.json", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)


def words_one(folder: Path) -> None:
    """Encoder and decoder as one graph."""
    _whisper(folder, "automatic-speech-recognition", monolith=True)


def words_three(folder: Path) -> None:
    """Encoder, decoder, and the decoder that goes on from a cache."""
    _whisper(folder, "automatic-speech-recognition-with-past", no_post_process=True)
    (folder / "decoder_model_merged.onnx").unlink(missing_ok=True)


def words_fused(folder: Path) -> None:
    """With onnxruntime's fused attention."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    words_two(folder)
    for path in folder.glob("*.onnx"):
        options = FusionOptions("bart")
        options.use_multi_head_attention = True
        made = optimize_model(str(path), "bart", num_heads=2, hidden_size=16, optimization_options=options)
        made.save_model_to_file(str(path))


def words_int8(folder: Path) -> None:
    """Weights in 8 bits: the framework says nothing of such a file."""
    from onnxruntime.quantization import quantize_dynamic

    words_two(folder)
    for path in folder.glob("*.onnx"):
        quantize_dynamic(path, path.with_suffix(".int8"))
        shutil.move(path.with_suffix(".int8"), path)
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    kept = [{"seconds": case["seconds"], "prompt": case["prompt"]} for case in about["speech"]]
    (folder / "about.json").write_text(json.dumps({**about, "speech": kept}, indent=1) + "\n", encoding="utf-8")


FAMILIES = {
    "whisper-words": words_two, "whisper-one": words_one, "whisper-three": words_three, "whisper-fused": words_fused,
    "whisper-int8": words_int8,
}  # fmt: skip
