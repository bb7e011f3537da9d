"""The tokenizer of tiny-gpt: a byte-level BPE trained on the text that its model is trained on."""

from __future__ import annotations

from itertools import islice

from tiny_gpt_text import documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END = "<|endoftext|>"
SEED, TEXTS = 1, 20_000


def train_tokenizer(vocab: int) -> Tokenizer:
    """A byte-level BPE of `vocab` tokens; id 0 is END, which is put in front of every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(documents(SEED), TEXTS), trainer)
    front = processors.TemplateProcessing(single=f"{END} $A", pair=f"{END} $A $B", special_tokens=[(END, 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), front])
    return tokenizer
