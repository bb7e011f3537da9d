"""The jobs of `compare.py` in one other tool, run by the Python of that tool's own environment.

    PYTHON compare_jobs.py TOOL JOB CHECKPOINT TEXTS.json OUT

A process does one job from start to end: imports, the checkpoint, tokens, the run, the file. Results are .npz files
(page: .html): `weights` [layer,head,query,key] of sentence and long, `entropy` [layer,head] in nats of corpus, the
mean over texts of the mean over queries, and `moved` [layer,head] of ablations, by attnx's measure: for an encoder 1 -
cosine of the text's mean vector with that of the plain run, for a decoder KL(plain || ablated) of the next token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
"""Texts a batch in corpus, sorted by length first, as attnx does."""


class Task:
    """What a job gets: the checkpoint's folder and configuration, the texts, and the tokenizer."""

    def __init__(self, checkpoint: Path, texts: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.checkpoint, self.texts = checkpoint, texts
        self.config = json.loads((checkpoint / "config.json").read_text())
        self.decoder = self.config["model_type"] == "gpt2"
        self.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def ids(self, job: str) -> list[int]:
        """The ids of the one text of a job."""
        return self.texts["long"] if job == "long" else self.tokenizer.encode(self.texts["sentence"]).ids

    def pieces(self) -> list[str]:
        return [self.tokenizer.id_to_token(i) for i in self.ids("sentence")]

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """ids and mask [text,token] of each batch of the corpus, padded on the right."""
        import torch

        rows = sorted((self.tokenizer.encode(text).ids for text in self.texts["corpus"]), key=len)
        for at in range(0, len(rows), BATCH):
            some = rows[at : at + BATCH]
            longest = len(some[-1])
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in some])
            yield ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in some])


def summed_entropy(weights: Any, mask: Any) -> Any:
    """[layer,head]: the sum over texts of the mean entropy of their real queries; weights a [text,head,Q,K] a layer."""
    import torch

    share = mask / mask.sum(1, keepdim=True)
    return torch.stack([torch.einsum("bhq,bq->h", torch.special.entr(a).sum(-1), share) for a in weights])


def moved(plain: Any, other: Any, decoder: bool) -> float:
    """How far a head's ablation moved the output [token,...] of a text."""
    import torch

    plain, other = plain.double(), other.double()
    if not decoder:
        return float(1 - torch.cosine_similarity(plain.mean(0), other.mean(0), dim=0))
    before, after = (x[-1].log_softmax(-1) for x in (plain, other))
    return float((before.exp() * (before - after)).sum())


def in_transformers(task: Task) -> Any:
    """The checkpoint in transformers, with the attention that gives weights; every weight comes from the file."""
    import transformers

    kind = transformers.GPT2LMHeadModel if task.decoder else transformers.BertModel
    how: dict[str, Any] = {} if task.decoder else {"add_pooling_layer": False}
    model, found = kind.from_pretrained(task.checkpoint, attn_implementation="eager", output_loading_info=True, **how)
    if missing := [name for name in found["missing_keys"] if "position_ids" not in name]:
        raise SystemExit(f"the checkpoint lacks {', '.join(missing)}")
    return model.eval()


def attention(task: Task) -> tuple[Any, ...]:
    """Weights [1,head,Q,K] of each layer on the sentence, from transformers."""
    import torch

    return in_transformers(task)(input_ids=torch.tensor([task.ids("sentence")]), output_attentions=True).attentions


def transformers_job(task: Task, job: str) -> dict[str, Any]:
    import torch

    model = in_transformers(task)
    if job == "corpus":
        found = [
            summed_entropy(model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions, mask)
            for ids, mask in task.batches()
        ]
        return {"entropy": sum(found) / len(task.texts["corpus"])}
    ids = torch.tensor([task.ids(job)])
    if job != "ablations":
        return {"weights": torch.cat(model(input_ids=ids, output_attentions=True).attentions)}
    key = "logits" if task.decoder else "last_hidden_state"
    if task.decoder:
        before = [layer.attn.c_proj for layer in model.transformer.h]
    else:
        before = [layer.attention.output.dense for layer in model.encoder.layer]
    heads = model.config.num_attention_heads
    size = model.config.hidden_size // heads
    plain = model(input_ids=ids)[key][0]

    def without(layer: int, head: int) -> float:
        def zero(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
            context = given[0].clone()
            context[..., head * size : (head + 1) * size] = 0
            return (context, *given[1:])

        hook = before[layer].register_forward_pre_hook(zero)
        other = model(input_ids=ids)[key][0]
        hook.remove()
        return moved(plain, other, task.decoder)

    return {"moved": [[without(layer, head) for head in range(heads)] for layer in range(len(before))]}


def transformer_lens_job(task: Task, job: str) -> dict[str, Any]:
    """TransformerBridge, as its documents recommend since version 3; weights are the hook `hook_pattern`."""
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    if task.decoder:
        import transformers

        own = transformers.GPT2LMHeadModel.from_pretrained(task.checkpoint, attn_implementation="eager")
        model = TransformerBridge.boot_transformers(str(task.checkpoint), hf_model=own)
    else:
        model = TransformerBridge.boot_transformers(str(task.checkpoint))
    layers, heads = model.cfg.n_layers, model.cfg.n_heads
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(layers)]

    def weights(ids: Any, **more: Any) -> list[Any]:
        _, cache = model.run_with_cache(ids, names_filter=lambda name: name in names, **more)
        return [cache[name] for name in names]

    if job == "corpus":
        found = [summed_entropy(weights(ids, attention_mask=mask), mask) for ids, mask in task.batches()]
        return {"entropy": sum(found) / len(task.texts["corpus"])}
    ids = torch.tensor([task.ids(job)])
    if job != "ablations":
        return {"weights": torch.cat(weights(ids))}
    if not task.decoder:
        raise SystemExit("gives an encoder's logits by a masked-language head, which the checkpoint has no weights of")
    plain = model(ids)[0]

    def without(layer: int, head: int) -> float:
        def zero(z: Any, hook: Any) -> Any:
            z = z.clone()
            if z.ndim == 4:
                z[:, :, head] = 0
            else:
                size = z.shape[-1] // heads
                z[..., head * size : (head + 1) * size] = 0
            return z

        other = model.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", zero)])[0]
        return moved(plain, other, task.decoder)

    return {"moved": [[without(layer, head) for head in range(heads)] for layer in range(layers)]}


def bertviz_page(task: Task, job: str) -> str:
    """model_view: every layer and head on one page; weights from transformers, as its README has it."""
    from bertviz import model_view

    return str(model_view(attention(task), task.pieces(), html_action="return").data)


def circuitsvis_page(task: Task, job: str) -> str:
    """attention_heads of every layer, one after the other; weights from transformers."""
    from circuitsvis.attention import attention_heads

    return "\n".join(str(attention_heads(layer[0], task.pieces())) for layer in attention(task))


JOBS: dict[str, Callable[[Task, str], Any]] = {
    "transformers": transformers_job,
    "transformer-lens": transformer_lens_job,
    "bertviz": bertviz_page,
    "circuitsvis": circuitsvis_page,
}


def main() -> None:
    tool, job, checkpoint, texts, out = sys.argv[1:]
    import torch

    with torch.no_grad():
        found = JOBS[tool](Task(Path(checkpoint), json.loads(Path(texts).read_text())), job)
    if job == "page":
        Path(out).write_text(found, encoding="utf-8")
    else:
        np.savez(out, **{name: np.asarray(array) for name, array in found.items()})


if __name__ == "__main__":
    main()
