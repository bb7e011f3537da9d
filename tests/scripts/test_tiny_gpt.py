"""The bundled decoder, and the graph builder behind it, against a GPT-2 in plain numpy that shares no code with either.

No torch: the weights are read back from the file. The scores of its heads are recomputed here from onnxruntime's
weights, token by token, on the texts and random blocks that the page was made from.
"""

import hashlib
import json
import re
import sys
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
TINY_GPT = ROOT / "models" / "tiny-gpt"
PAGE_FILES = {"model.onnx", "tokenizer.json", "config.json", "generation_config.json"}


def script(name: str) -> ModuleType:
    folder = str(ROOT / "scripts")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return __import__(name)


gpt_graph, gpt_in_numpy, tiny_gpt_text = (script(n) for n in ("gpt_graph", "gpt_in_numpy", "tiny_gpt_text"))


class Tapped:
    """A built model in onnxruntime with the weights of every layer as outputs."""

    def __init__(self, model: onnx.ModelProto, heads: int, size: int) -> None:
        tapped = onnx.ModelProto()
        tapped.CopyFrom(model)
        self.taps = [node.output[0] for node in tapped.graph.node if node.op_type == "Softmax"]
        tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in self.taps)
        self.session = onnxruntime.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
        self.pasts = [i.name for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        self.presents = [name.replace("past_key_values", "present") for name in self.pasts]
        self.empty = (heads, 0, size)

    def __call__(
        self, ids: np.ndarray, mask: np.ndarray, past: list[np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Weights [layer,B,H,Q,K], logits [B,Q,vocab], and the longer past."""
        past = past or [np.zeros((len(ids), *self.empty), np.float32)] * len(self.pasts)
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, mask.shape[1] - ids.shape[1] :]
        feed = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        got = self.session.run(["logits", *self.taps, *self.presents], feed | dict(zip(self.pasts, past, strict=True)))
        layers = len(self.taps)
        return np.stack(got[1 : 1 + layers]), got[0], got[1 + layers :]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(TINY_GPT / "model.onnx")


@pytest.fixture(scope="module")
def config() -> dict[str, int]:
    return dict(json.loads((TINY_GPT / "config.json").read_text()))


@pytest.fixture(scope="module")
def tapped(model: onnx.ModelProto, config: dict[str, int]) -> Tapped:
    return Tapped(model, config["n_head"], config["n_embd"] // config["n_head"])


@pytest.fixture(scope="module")
def stored(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The weights as the file holds them, under Hugging Face's names."""
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name.startswith("transformer.")}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY_GPT / "tokenizer.json"))


def page() -> str:
    return (TINY_GPT / "MODEL.md").read_text(encoding="utf-8")


def stated_scores() -> dict[str, np.ndarray]:
    """The page's table of heads, [layer,H] for each column."""
    rows = re.findall(r"^\| L(\d+) H(\d+) \|(.+)\|$", page(), re.M)
    table = np.array([[float(cell.strip(" *")) for cell in cells.split("|")] for _, _, cells in rows])
    table = table.reshape(int(rows[-1][0]) + 1, int(rows[-1][1]) + 1, -1)
    names = ("previous", "self", "first", "entropy", "induction", "duplicate")
    return dict(zip(names, np.moveaxis(table, -1, 0), strict=True))


def test_model_page_names_the_files_as_they_are() -> None:
    rows = {n: (int(size), d) for n, size, d in re.findall(r"^\| (\S+) \| (\d+) \| `([0-9a-f]{64})` \|$", page(), re.M)}
    assert set(rows) == PAGE_FILES
    for name, (size, digest) in rows.items():
        data = (TINY_GPT / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)
    assert {path.name for path in TINY_GPT.iterdir()} == PAGE_FILES | {"MODEL.md"}
    assert sum(path.stat().st_size for path in TINY_GPT.iterdir()) <= 6_000_000
    assert "Apache-2.0" in page()
    assert "It is small" in page()


def test_model_has_the_layout_of_an_eager_export_with_cache(model: onnx.ModelProto, config: dict[str, int]) -> None:
    layers, heads = config["n_layer"], config["n_head"]
    size = config["n_embd"] // heads
    caches = [f"{{}}.{i}.{part}" for i in range(layers) for part in ("key", "value")]
    pasts, presents = ([c.format(n) for c in caches] for n in ("past_key_values", "present"))
    assert [i.name for i in model.graph.input] == ["input_ids", "attention_mask", "position_ids", *pasts]
    assert [o.name for o in model.graph.output] == ["logits", *presents]
    dims = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*model.graph.input, *model.graph.output)
    }
    assert dims["attention_mask"] == ["batch_size", "total_sequence_length"]
    assert dims["past_key_values.1.value"] == ["batch_size", heads, "past_sequence_length", size]
    assert dims["present.1.value"] == ["batch_size", heads, "total_sequence_length", size]
    assert dims["logits"] == ["batch_size", "sequence_length", config["vocab_size"]]
    nodes = {node.name: node for node in model.graph.node}
    assert len(nodes) == len(model.graph.node)
    at = f"/transformer/h.{layers - 1}/attn"
    chain = [f"{at}/MatMul", f"{at}/Div", f"{at}/Add", f"{at}/Softmax", f"{at}/MatMul_1"]
    assert [nodes[name].op_type for name in chain] == ["MatMul", "Div", "Add", "Softmax", "MatMul"]
    for before, after in pairwise(chain):
        assert nodes[before].output[0] in nodes[after].input


def test_model_computes_gpt2_and_hides_the_future(
    tapped: Tapped, stored: dict[str, np.ndarray], config: dict[str, int], tokenizer: Tokenizer
) -> None:
    """With the file's own rounded weights, numpy and the graph agree: on a left-padded batch too."""
    rows = [tokenizer.encode(t).ids for t in ("Mia had a red ball because she liked it.", "The dog slept.")]
    length = max(map(len, rows))
    assert length > len(rows[1])
    ids = np.array([[0] * (length - len(r)) + r for r in rows], np.int64)
    mask = np.array([[0] * (length - len(r)) + [1] * len(r) for r in rows], np.int64)
    weights, logits, _ = tapped(ids, mask)
    expected, expected_logits = gpt_in_numpy.forward(stored, config, ids, mask)
    real = mask > 0
    assert np.abs(logits - expected_logits)[real].max() < 1e-3
    by_query, expected = weights.swapaxes(2, 3), expected.swapaxes(2, 3)
    assert np.abs(by_query - expected)[:, real].max() < 1e-5
    future = ~np.tri(length, dtype=bool)
    assert not weights[..., future].any()
    padding = length - len(rows[1])
    assert not weights[:, 1, :, padding:, :padding].any()
    assert weights.sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("first", [1, 5])
def test_decoding_with_the_cache_gives_what_decoding_without_gives(
    tapped: Tapped, tokenizer: Tokenizer, first: int
) -> None:
    rows = [tokenizer.encode(t).ids for t in ("When Tom and Anna went home, Tom gave a cake to Anna.", "One, two.")]
    length = max(map(len, rows))
    ids = np.array([[0] * (length - len(r)) + r for r in rows], np.int64)
    mask = np.array([[0] * (length - len(r)) + [1] * len(r) for r in rows], np.int64)
    weights, logits, whole_past = tapped(ids, mask)
    past, start = None, 0
    for stop in (first, *range(first + 1, length + 1)):
        part, part_logits, past = tapped(ids[:, start:stop], mask[:, :stop], past)
        for row in (0, 1):
            real = [i for i in range(start, stop) if mask[row, i]]
            for i in real:
                assert np.abs(part_logits[row, i - start] - logits[row, i]).max() < 1e-3
                assert np.abs(part[:, row, :, i - start] - weights[:, row, :, i, :stop]).max() < 1e-5
        start = stop
    assert past is not None
    assert max(np.abs(a - b)[0].max() for a, b in zip(past, whole_past, strict=True)) < 1e-4


def test_heads_are_what_the_page_says(tapped: Tapped, config: dict[str, int], tokenizer: Tokenizer) -> None:
    stated = stated_scores()
    assert stated["induction"].shape == (config["n_layer"], config["n_head"])
    found: dict[str, list[np.ndarray]] = {name: [] for name in stated}
    for ids in gpt_in_numpy.probes(config["vocab_size"], config["bos_token_id"])[:, None]:
        assert len(np.unique(ids[0, 1:26])) == 25
        assert (ids[0, 1:].reshape(4, 25) == ids[0, 1:26]).all()
        weights = tapped(ids, np.ones_like(ids))[0][:, 0]
        for i in range(26, 101):
            copies = [j for j in range(i) if ids[0, j] == ids[0, i]]
            found["duplicate"].append(weights[:, :, i, copies].sum(-1))
            found["induction"].append(weights[:, :, i, [j + 1 for j in copies]].sum(-1))
    held_out = 3  # the seed of the texts that training never saw
    for text in islice(tiny_gpt_text.documents(held_out), 64):
        ids = np.array([tokenizer.encode(text).ids[:128]], np.int64)
        weights = tapped(ids, np.ones_like(ids))[0][:, 0]
        for i in range(2, ids.shape[1]):
            found["previous"].append(weights[:, :, i, i - 1])
            found["self"].append(weights[:, :, i, i])
            found["first"].append(weights[:, :, i, 0])
            row = weights[:, :, i, : i + 1].astype(np.float64)
            found["entropy"].append(-(row * np.log(np.maximum(row, 1e-300))).sum(-1))
    for name, rows in found.items():
        assert np.abs(np.mean(rows, axis=0) - stated[name]).max() < (0.006 if name == "entropy" else 0.001), name
    for name in ("previous", "first", "induction"):
        assert stated[name].max() > 0.5


def test_page_states_differences_that_are_small() -> None:
    rows = re.findall(r"^\| ([a-z][^|]+?) \| ([0-9.e+-]+) \|$", page().split("## How faithful it is")[1], re.M)
    stated = {name: float(value) for name, value in rows}
    assert len(stated) == 8
    assert all(value < 1e-3 for name, value in stated.items() if "float32" not in name)
    assert stated["float32 torch, logits"] < 0.1


def test_tokenizer_gives_every_text_back_behind_the_first_token(tokenizer: Tokenizer, config: dict[str, int]) -> None:
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.id_to_token(config["bos_token_id"]) == "<|endoftext|>"
    for text in ("The animal didn't cross the street.", "고양이 \x1b[31m 日本語 🦊", "  two  spaces\n"):
        ids = tokenizer.encode(text).ids
        assert ids[0] == config["bos_token_id"]
        assert tokenizer.decode(ids) == text
    tokens = tokenizer.encode("Mary gave the apple to John because she liked him.").tokens
    assert {"Mary", "Ġapple", "ĠJohn", "Ġshe", "Ġhim"} <= set(tokens)


def test_tokenizer_is_the_one_that_its_text_gives(tokenizer: Tokenizer, config: dict[str, int]) -> None:
    """The grammar has not changed since the model was trained on it, or the model would have to be trained again."""
    again = json.loads(script("tiny_gpt_tokenizer").train_tokenizer(config["vocab_size"]).to_str())
    assert again["model"] == json.loads(tokenizer.to_str())["model"]


def test_text_is_seeded_and_pronouns_fit_their_names() -> None:
    texts = list(islice(tiny_gpt_text.documents(5), 300))
    assert texts == list(islice(tiny_gpt_text.documents(5), 300))
    assert texts != list(islice(tiny_gpt_text.documents(6), 300))
    words = script("tiny_gpt_words")
    assert not set(words.GIRLS) & set(words.BOYS)
    told = [re.search(r"^(\w+) was an? (?:\w+ )?(\w+)\. (She|He) had", text) for text in texts]
    known = [(m[1], m[2], m[3]) for m in told if m]
    assert known
    for name, kind, pronoun in known:
        assert (kind in words.WOMEN) == (pronoun == "She")
        assert name not in (words.BOYS if pronoun == "She" else words.GIRLS)


def test_built_graph_computes_gpt2_and_is_reproducible() -> None:
    config = {"n_embd": 12, "n_head": 3, "n_layer": 2, "layer_norm_epsilon": 1e-5, "vocab_size": 30}
    rng = np.random.default_rng(0)
    shapes = {"transformer.wte.weight": (30, 12), "transformer.wpe.weight": (9, 12)}
    for layer in (0, 1):
        at = f"transformer.h.{layer}"
        linears = {"attn.c_attn": (12, 36), "attn.c_proj": (12, 12), "mlp.c_fc": (12, 48), "mlp.c_proj": (48, 12)}
        for name, shape in linears.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[1:]}
        shapes |= {f"{at}.{name}.{part}": (12,) for name in ("ln_1", "ln_2") for part in ("weight", "bias")}
    shapes |= {f"transformer.ln_f.{part}": (12,) for part in ("weight", "bias")}
    # Numbers that float16 holds exactly, so that storage adds no difference.
    tensors = {k: rng.normal(size=s).astype(np.float16).astype(np.float32) for k, s in shapes.items()}
    built = gpt_graph.build_gpt2(tensors, config)
    ids, mask = np.array([[0, 7, 29, 3, 11]], np.int64), np.array([[0, 1, 1, 1, 1]], np.int64)
    weights, logits, _ = Tapped(built, 3, 4)(ids, mask)
    expected, expected_logits = gpt_in_numpy.forward(tensors, config, ids, mask)
    assert weights.shape == (2, 1, 3, 5, 5)
    np.testing.assert_allclose(weights[..., 1:, :], expected[..., 1:, :], atol=1e-5)
    np.testing.assert_allclose(logits[:, 1:], expected_logits[:, 1:], atol=1e-4)
    again = gpt_graph.build_gpt2(tensors, config)
    assert built.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
