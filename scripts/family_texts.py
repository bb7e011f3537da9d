"""Families that read and write text or hear sound: decoders with and without a cache, encoder-decoders, Whisper."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_parts import COUNT, TARGET, TEXT, alike, export, in_turn, record, sharpen, sound, tokenizer

SIDES = ["<pad>", "<s>", "</s>", "<unk>"]
PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQ"
PIECES = [*"<cls> <pad> <eos> <unk>".split(), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
"""ESM's vocabulary."""


def greedy(step: Any, ids: list[int], count: int, stop: int) -> list[int]:
    """Write on by running the whole sequence at every step, without a cache."""
    for _ in range(count):
        ids = [*ids, int(step(torch.tensor([ids])).logits[0, -1].argmax())]
        if ids[-1] == stop:
            break
    return ids


def _gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = tokenizer(["<|endoftext|>", "<unk>"], "$A", bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    config = GPT2Config(
        vocab_size=len(tokens), n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return sharpen(GPT2LMHeadModel(config), 3), tokens


def _llama(positions: int = 64) -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = tokenizer(SIDES, "<s> $A", bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokens.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }} a {% endfor %}"
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    return sharpen(LlamaForCausalLM(config), 5), tokens


def written(folder: Path, model: Any, tokens: Any) -> None:
    """The truth of a decoder that writes on."""
    ids = greedy(model, tokens(TEXT)["input_ids"], COUNT, model.config.eos_token_id)
    with torch.no_grad():
        ran = model(torch.tensor([ids]), output_attentions=True)
    record(folder, {"text": TEXT, "generate": COUNT}, alike(ran.attentions, "decoder", True), ids=ids)


def gpt2(folder: Path) -> None:
    """GPT-2, one file with its cache."""
    model, tokens = _gpt2()
    written(folder, export(model, folder, "text-generation-with-past", tokens), tokens)


def gpt2_plain(folder: Path) -> None:
    """GPT-2 without a cache: every step is computed anew."""
    model, tokens = _gpt2()
    written(folder, export(model, folder, "text-generation", tokens), tokens)


def llama_merged(folder: Path) -> None:
    """Llama, both ways in one file, chosen by use_cache_branch."""
    from optimum.exporters.onnx import export as export_one
    from optimum.exporters.onnx.model_configs import LlamaOnnxConfig
    from optimum.onnx import merge_decoders

    model, tokens = _llama()
    eager = export(model, folder, "text-generation-with-past", tokens)
    plain = folder / "plain"
    plain.mkdir()
    model.config.use_cache = True

    def first(config: Any) -> Any:
        return LlamaOnnxConfig(config, task="text-generation", use_past=True, use_past_in_inputs=False)

    export_one(model, first(model.config), plain / "first.onnx", opset=18)
    merge_decoders(plain / "first.onnx", folder / "model.onnx", save_path=folder / "decoder_model_merged.onnx")
    (folder / "model.onnx").unlink()
    shutil.rmtree(plain)
    written(folder, eager, tokens)


def llama_static(folder: Path) -> None:
    """Llama with a cache of a fixed size, written at cache_position."""
    from transformers import StaticCache

    model, tokens = _llama()
    room, layers, heads, size = 32, 2, 2, 4

    class Static(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, places: Any, at: Any, *caches: Any) -> Any:
            cache = StaticCache(config=model.config, max_cache_len=room)
            for layer in range(layers):
                cache.layers[layer].lazy_initialization(caches[2 * layer])
                cache.layers[layer].keys, cache.layers[layer].values = caches[2 * layer : 2 * layer + 2]
            seen = (torch.arange(room)[None] <= at[:, None]) & (mask[:, None, :] > 0)
            hide = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
            out = self.model(ids, attention_mask=hide, position_ids=places, past_key_values=cache, cache_position=at,
                             use_cache=True)  # fmt: skip
            return out.logits, *(c for one in cache.layers for c in (one.keys, one.values))

    folder.mkdir(parents=True)
    names = [f"past_key_values.{layer}.{side}" for layer in range(layers) for side in ("key", "value")]
    model.set_attn_implementation("eager")
    count = 3
    mask = torch.zeros(1, room, dtype=torch.int64)
    mask[:, :count] = 1
    feed = (torch.arange(5, 5 + count)[None], mask, torch.arange(count)[None], torch.arange(count),
            *(torch.zeros(1, heads, room, size) for _ in names))  # fmt: skip
    torch.onnx.export(
        Static().eval(), feed, str(folder / "model.onnx"), dynamo=False, opset_version=18,
        input_names=["input_ids", "attention_mask", "position_ids", "cache_position", *names],
        output_names=["logits", *(n.replace("past_key_values", "present") for n in names)],
        dynamic_axes={"input_ids": {1: "sequence"}, "position_ids": {1: "sequence"}, "cache_position": {0: "sequence"}},
    )  # fmt: skip
    model.config.save_pretrained(folder)
    tokens.save_pretrained(folder)
    written(folder, model, tokens)


def translated(folder: Path, model: Any, tokens: Any, start: list[int], *, target: bool = False) -> None:
    """The truth of an encoder-decoder that writes, or that is told what to say."""
    source = torch.tensor([tokens(TEXT)["input_ids"]])

    def step(ids: Any) -> Any:
        return model(input_ids=source, decoder_input_ids=ids, output_attentions=True)

    given: dict[str, Any] = {"text": TEXT}
    with torch.no_grad():
        if target:
            said = tokens(TARGET)["input_ids"]
            ids = [*start, *(said[:-1] if said[-1] == tokens.eos_token_id else said)]
            given["target"] = TARGET
        else:
            ids = greedy(step, start, COUNT, model.config.eos_token_id)
            given["generate"] = COUNT
        ran = step(torch.tensor([ids]))
    sites = alike(ran.encoder_attentions, "encoder", False) + in_turn(ran.decoder_attentions, ran.cross_attentions)
    record(folder, given, sites, ids=ids, memory=source[0].tolist(), start=start)


def int8(name: str) -> Callable[[Path], None]:
    """A translator with weights in 8 bits: the framework says nothing of such a file, onnxruntime itself does."""

    def build(folder: Path) -> None:
        from onnxruntime.quantization import quantize_dynamic

        FAMILIES[name](folder)
        (folder / "decoder_model_merged.onnx").unlink(missing_ok=True)
        for path in folder.glob("*.onnx"):
            quantize_dynamic(path, path.with_suffix(".int8"))
            shutil.move(path.with_suffix(".int8"), path)
        (folder / "truth.npz").unlink()
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        kept = {"given": about["given"], "translates": {"start": about["start"], "memory": about["memory"]}}
        (folder / "about.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    build.__doc__ = f"{name}, weights in 8 bits."
    return build


def esm(folder: Path) -> None:
    """ESM-2: reads proteins residue by residue, and comes with a list of pieces alone; contacts by transformers."""
    from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer
    from transformers.models.esm.modeling_esm import average_product_correct, symmetrize

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    tokens = EsmTokenizer(str(folder / "vocab.txt"))
    config = EsmConfig(
        vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=66, pad_token_id=1, mask_token_id=32, position_embedding_type="rotary",
        token_dropout=True, emb_layer_norm_before=False, is_folding_model=False,
    )  # fmt: skip
    model = export(sharpen(EsmForMaskedLM(config), 5), folder, "fill-mask", tokens)
    ids = tokens(PROTEIN)["input_ids"]
    with torch.no_grad():
        ran = model(torch.tensor([ids]), output_attentions=True)
    record(folder, {"text": PROTEIN}, alike(ran.attentions, "encoder", False), ids=ids)
    maps = torch.cat([average_product_correct(symmetrize(a[..., 1:-1, 1:-1])) for a in ran.attentions]).numpy()
    with np.load(folder / "truth.npz") as truth:
        np.savez_compressed(folder / "truth.npz", **truth, contacts=maps)


def t5(folder: Path) -> None:
    """T5: no scale, a bias by relative position."""
    from transformers import T5Config, T5ForConditionalGeneration

    tokens = tokenizer(SIDES, "$A </s>", eos_token="</s>", pad_token="<pad>")
    config = T5Config(
        vocab_size=len(tokens), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=2, relative_attention_num_buckets=8,
    )  # fmt: skip
    model = export(
        sharpen(T5ForConditionalGeneration(config), 2, 0.8), folder, "text2text-generation-with-past", tokens
    )
    translated(folder, model, tokens, [0])


def _seq2seq(folder: Path, kind: str, around: str, special: list[str], **more: Any) -> tuple[Any, Any]:
    import transformers

    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokens = tokenizer(special, around, **roles)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokens), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip
    head = {"Marian": "MarianMTModel"}.get(kind, f"{kind}ForConditionalGeneration")
    model = sharpen(getattr(transformers, head)(config), 4)
    model.generation_config.update(
        decoder_start_token_id=config.decoder_start_token_id, forced_bos_token_id=config.forced_bos_token_id,
        forced_eos_token_id=None,
    )  # fmt: skip
    return export(model, folder, "text2text-generation-with-past", tokens), tokens


def bart(folder: Path) -> None:
    """BART, told what its decoder says."""
    model, tokens = _seq2seq(
        folder, "Bart", "<s> $A </s>", SIDES, decoder_start_token_id=2, forced_bos_token_id=None,
        forced_eos_token_id=None,
    )  # fmt: skip
    translated(folder, model, tokens, [2], target=True)


def marian(folder: Path) -> None:
    """Marian: positions by sine and cosine."""
    model, tokens = _seq2seq(
        folder, "Marian", "$A </s>", SIDES, decoder_start_token_id=0, forced_eos_token_id=None,
        scale_embedding=True,
    )  # fmt: skip
    translated(folder, model, tokens, [0])


def m2m100(folder: Path) -> None:
    """M2M100: the language to write in is the first token that is forced."""
    special = [*SIDES, "__en__", "__de__"]
    model, tokens = _seq2seq(
        folder, "M2M100", "__en__ $A </s>", special, decoder_start_token_id=2, forced_bos_token_id=5
    )
    translated(folder, model, tokens, [2, 5])


def whisper_short(folder: Path) -> None:
    """Whisper for pieces of 2 s, without a cache: small enough to ship with the tests."""
    whisper(folder, seconds=2, task="automatic-speech-recognition")


def whisper(folder: Path, *, seconds: int = 30, task: str = "automatic-speech-recognition-with-past") -> None:
    """Whisper with its real front: 80 bands, 100 spectra a second, pieces of 30 s."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    special = [*SIDES, "<|startoftranscript|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>",
               "<|notimestamps|>"]  # fmt: skip
    tokens = tokenizer(special, "$A", bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    config = WhisperConfig(
        vocab_size=len(tokens), d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=seconds * 50,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=4,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    source = sharpen(WhisperForConditionalGeneration(config), 6)
    # As those of the Hub have it: the language is recognised, the task and the absence of timestamps are forced.
    suppressed, at_first = [0, 1, 3, 4, 5, 6, 7, 8, 9], [2, 20, 49]
    own: dict[str, Any] = {
        "decoder_start_token_id": 4, "is_multilingual": True, "lang_to_id": {"<|en|>": 5, "<|de|>": 6},
        "task_to_id": {"transcribe": 7, "translate": 8}, "no_timestamps_token_id": 9, "suppress_tokens": suppressed,
        "begin_suppress_tokens": at_first,
    }  # fmt: skip
    ears = WhisperFeatureExtractor(chunk_length=seconds)
    model = export(source, folder, task, tokens, ears, nb_max_frames=100 * seconds)
    told = {**json.loads((folder / "generation_config.json").read_text(encoding="utf-8")), **own}
    (folder / "generation_config.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    heard = sound(folder / "tones.wav", min(3.0, seconds - 0.1))
    features = torch.tensor(_features(ears, heard))

    def step(ids: list[int]) -> Any:
        return model(input_features=features, decoder_input_ids=torch.tensor([ids]), output_attentions=True)

    with torch.no_grad():
        logits = step([4]).logits[0, -1]
        ids = [4, 5 if logits[5] > logits[6] else 6, 7, 9]
        for at in range(COUNT):
            logits = step(ids).logits[0, -1]
            logits[[*suppressed, *(at_first if at == 0 else [])]] = -torch.inf
            ids.append(int(logits.argmax()))
        ran = step(ids)
    sites = alike(ran.encoder_attentions, "encoder", False) + in_turn(ran.decoder_attentions, ran.cross_attentions)
    record(folder, {"audio": heard.name, "generate": COUNT + 3}, sites, ids=ids, seconds=seconds)


def wav2vec2(folder: Path) -> None:
    """Wav2Vec2: hears samples."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        conv_dim=(16,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    ears = Wav2Vec2FeatureExtractor(do_normalize=True)
    model = export(sharpen(Wav2Vec2ForCTC(config), 7), folder, "automatic-speech-recognition", ears)
    heard = sound(folder / "tones.wav")
    with torch.no_grad():
        ran = model(torch.tensor(_features(ears, heard)), output_attentions=True)
    record(folder, {"audio": heard.name}, alike(ran.attentions, "encoder", False), seconds=3)


def longformer(folder: Path) -> None:
    """Longformer: windows of 5 tokens, whose scores are held as a band; the file takes texts of 16 tokens."""
    from transformers import LongformerConfig, LongformerModel

    tokens = tokenizer(
        ["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    config = LongformerConfig(
        vocab_size=len(tokens), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        attention_window=[4, 4], max_position_embeddings=140, type_vocab_size=2, pad_token_id=1, onnx_export=True,
    )  # fmt: skip
    model = export(sharpen(LongformerModel(config), 3), folder, "feature-extraction", tokens)
    text = f"{TARGET} and {TARGET} a"
    ids = tokens(text)["input_ids"]
    with torch.no_grad():
        ran = model(torch.tensor([ids]), output_attentions=True)
    sites = []
    for band in ran.attentions:  # [B,H,S,5]: column c of row i is key i + c - 2
        whole = torch.zeros(*band.shape[:3], len(ids) + 4)
        for i in range(len(ids)):
            whole[:, :, i, i : i + 5] = band[:, :, i]
        sites.append(("self", "encoder", False, whole[..., 2:-2]))
    record(folder, {"text": text}, sites, ids=ids)


def _features(ears: Any, path: Path) -> Any:
    import wave

    import numpy as np

    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    got = ears(samples, sampling_rate=16_000, return_tensors="np")
    return next(iter(got.values())).astype(np.float32)


FAMILIES = {
    "gpt2": gpt2, "gpt2-plain": gpt2_plain, "llama-merged": llama_merged, "llama-static": llama_static, "t5": t5,
    "bart": bart, "marian": marian, "m2m100": m2m100, "whisper": whisper, "whisper-short": whisper_short,
    "wav2vec2": wav2vec2, "longformer": longformer, "esm": esm,
}  # fmt: skip
FAMILIES |= {f"{name}-int8": int8(name) for name in ("marian", "m2m100", "t5")}
