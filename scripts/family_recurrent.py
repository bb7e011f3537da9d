"""The ancestors: LSTM and GRU without attention, and translators of LSTMs with Bahdanau's and Luong's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from family_parts import TARGET, TEXT, record, sharpen, tokenizer
from torch import nn

SIZE = 12


class Reader(nn.Module):
    """Embeds, reads, and says what comes next."""

    def __init__(self, vocabulary: int, cell: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, SIZE)
        self.cell = cell(SIZE, SIZE, num_layers=2, batch_first=True)
        self.head = nn.Linear(SIZE, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(input_ids))[0])


class Translator(nn.Module):
    """An LSTM over the source, one over the target, and the attention of the second to the first.

    Sources: Bahdanau et al. 2015, section 3.1 (additive); Luong et al. 2015, section 3.1 ("general").
    """

    def __init__(self, vocabulary: int, additive: bool) -> None:
        super().__init__()
        self.additive = additive
        self.embed = nn.Embedding(vocabulary, SIZE)
        self.encoder = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.decoder = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.of_query, self.of_key = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
        self.energy = nn.Linear(SIZE, 1, bias=False)
        self.head = nn.Linear(2 * SIZE, vocabulary)
        self.weights = torch.zeros(0)

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> torch.Tensor:
        memory, state = self.encoder(self.embed(input_ids))
        query, _ = self.decoder(self.embed(decoder_input_ids), state)
        if self.additive:
            both = torch.tanh(self.of_query(query)[:, :, None] + self.of_key(memory)[:, None])
            scores = self.energy(both).squeeze(-1)
        else:
            scores = self.of_query(query) @ memory.transpose(1, 2)
        weights = scores.softmax(-1)
        self.weights = weights.detach()
        return self.head(torch.cat([query, weights @ memory], -1))


def _tokens(folder: Path) -> Any:
    tokens = tokenizer(["<pad>", "<s>", "</s>", "<unk>"], "<s> $A </s>", bos_token="<s>", eos_token="</s>",
                       pad_token="<pad>")  # fmt: skip
    folder.mkdir(parents=True)
    tokens.save_pretrained(folder)
    (folder / "config.json").write_text('{"decoder_start_token_id": 1, "eos_token_id": 2}\n', encoding="utf-8")
    return tokens


def _export(folder: Path, model: nn.Module, feed: dict[str, torch.Tensor]) -> None:
    torch.onnx.export(
        model, tuple(feed.values()), str(folder / "model.onnx"), dynamo=False, opset_version=18, input_names=list(feed),
        output_names=["logits"], dynamic_axes={n: {1: f"{n}_length"} for n in feed},
    )  # fmt: skip


def _reader(folder: Path, cell: type[nn.Module]) -> None:
    tokens = _tokens(folder)
    ids = tokens(TEXT)["input_ids"]
    _export(folder, sharpen(Reader(len(tokens), cell)), {"input_ids": torch.tensor([ids])})
    record(folder, {"text": TEXT}, [], ids=ids)


def _translator(folder: Path, additive: bool) -> None:
    tokens = _tokens(folder)
    source, target = tokens(TEXT)["input_ids"], tokens(TARGET)["input_ids"][:-1]
    model = sharpen(Translator(len(tokens), additive), gain=2.0)
    feed = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
    _export(folder, model, feed)
    model(*feed.values())
    site = ("additive", "encoder", False) if additive else ("cross", "decoder", False)
    record(folder, {"text": TEXT, "target": TARGET}, [(*site, model.weights[:, None])], ids=target, memory=source)


def lstm(folder: Path) -> None:
    """Two LSTMs, one over the other."""
    _reader(folder, nn.LSTM)


def gru(folder: Path) -> None:
    """Two GRUs."""
    _reader(folder, nn.GRU)


def bahdanau(folder: Path) -> None:
    """LSTMs with additive attention."""
    _translator(folder, True)


def luong(folder: Path) -> None:
    """LSTMs with multiplicative attention."""
    _translator(folder, False)


FAMILIES = {"lstm": lstm, "gru": gru, "bahdanau": bahdanau, "luong": luong}
