"""What a decoder begins with and may write, as transformers' configurations say."""

import json
from pathlib import Path

import pytest

import attnx
from attnx.errors import ModelError
from attnx.feed.generation_config import Rules, decoder_start, read_rules
from attnx.feed.languages import code
from attnx.tokens.config import Config
from tests import small_models as small
from tests.small_senses import letters

LANGUAGES = {"<|en|>": 5, "<|de|>": 6}
WHISPER = {
    "decoder_start_token_id": 4, "lang_to_id": LANGUAGES, "task_to_id": {"transcribe": 7, "translate": 8},
    "no_timestamps_token_id": 9, "suppress_tokens": [1, 2], "begin_suppress_tokens": [3, 10],
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "forced", "among"),
    [
        ({"forced_bos_token_id": 7}, {1: 7}, {}),
        (WHISPER, {2: 7, 3: 9}, {1: {5, 6}}),
        (WHISPER | {"language": "de", "task": "translate"}, {1: 6, 2: 8, 3: 9}, {}),
        (WHISPER | {"language": "<|en|>"}, {1: 5, 2: 7, 3: 9}, {}),
        (WHISPER | {"language": "German", "task": "transcribe"}, {1: 6, 2: 7, 3: 9}, {}),
        (WHISPER | {"language": "german", "is_multilingual": False}, {1: 6, 2: 7, 3: 9}, {}),
        # where a language or a task is set, transformers passes over the older field
        (WHISPER | {"language": "de", "forced_decoder_ids": [[1, 5], [2, 8]]}, {1: 6, 2: 7, 3: 9}, {}),
        (WHISPER | {"task": "translate", "forced_decoder_ids": [[1, 5], [2, 7]]}, {2: 8, 3: 9}, {1: {5, 6}}),
        (WHISPER | {"forced_decoder_ids": [[1, None], [2, 7]]}, {2: 7, 3: 9}, {1: {5, 6}}),
        (WHISPER | {"is_multilingual": False}, {1: 9}, {}),
        ({"forced_decoder_ids": [[1, 9]], "no_timestamps_token_id": 9}, {1: 9}, {}),
        ({}, {}, {}),
    ],
)
def test_what_is_forced(config: dict[str, object], forced: dict[int, int], among: dict[int, set[int]]) -> None:
    rules = read_rules(Config(config))
    assert rules.forced == forced
    assert rules.among == {place: frozenset(ids) for place, ids in among.items()}
    assert rules.first == 1 + max([0, *forced, *among])


@pytest.mark.parametrize(("name", "value"), [("language", "klingon"), ("language", "French"), ("task", "sing")])
def test_a_language_or_task_that_the_model_lacks_is_refused(name: str, value: str) -> None:
    with pytest.raises(ModelError, match=f"{name} is '{value}', and one of .*_to_id was expected"):
        read_rules(Config(WHISPER | {name: value}))


def test_languages_go_by_names_codes_and_tokens() -> None:
    assert [code(name) for name in ("Japanese", "ja", "<|JA|>", "Haitian Creole", "Mandarin")] == [
        "ja", "ja", "ja", "ht", "zh",
    ]  # fmt: skip
    assert code("klingon") == "klingon"


def test_what_is_suppressed() -> None:
    assert read_rules(Config(WHISPER)) == Rules(
        {2: 7, 3: 9}, {1: frozenset({5, 6})}, frozenset({1, 2}), frozenset({3, 10})
    )
    assert read_rules(Config({"bad_words_ids": [[4], [5, 6]]})).suppressed == {4}


def model(folder: Path, **config: object) -> attnx.Model:
    w = small.weights(4)
    small.save(
        folder, config=config, encoder_model=small.encoder(w), decoder_model=small.cross_decoder(w, cached=False)
    )
    letters(folder)
    return attnx.open(folder, device="cpu")


def test_the_start_and_what_is_forced_right_behind_it(tmp_path: Path) -> None:
    assert decoder_start(model(tmp_path / "a", decoder_start_token_id=5, forced_bos_token_id=8)) == ([5, 8], None)
    assert decoder_start(model(tmp_path / "b", **WHISPER)) == ([4], None)
    ids, note = decoder_start(model(tmp_path / "c"))
    assert len(ids) == 1
    assert note is not None
    assert "decoder_start_token_id" in note


def test_a_target_begins_as_the_model_begins(tmp_path: Path) -> None:
    """The tokenizer puts <s> (21) first: it stays behind a start of its own, and gives way to what is forced."""
    plain = model(tmp_path / "a", decoder_start_token_id=5).trace("ab", target="cd")
    assert plain.tokens.ids.tolist() == [5, 21, 2, 3]
    forced = model(tmp_path / "b", decoder_start_token_id=5, forced_bos_token_id=8).trace("ab", target="cd")
    assert forced.tokens.ids.tolist() == [5, 8, 2, 3]
    same = model(tmp_path / "c", decoder_start_token_id=21).trace("ab", target="cd")
    assert same.tokens.ids.tolist() == [21, 2, 3]
    heard = model(tmp_path / "d", **WHISPER | {"language": "de"}).trace("ab", target="cd")
    assert heard.tokens.ids.tolist() == [4, 6, 7, 9, 2, 3]
    unknown = model(tmp_path / "e", **WHISPER).trace("ab", target="cd")
    assert any("position 1 (the language)" in note for note in unknown.notes)


def test_generation_config_wins(tmp_path: Path) -> None:
    place = model(tmp_path, decoder_start_token_id=5)
    (tmp_path / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 7}))
    assert decoder_start(place)[0] == [7]


def test_a_layer_that_only_one_file_has(tmp_path: Path) -> None:
    """The decoder here has one layer more than the encoder."""
    w = small.weights(4)
    short = small.encoder(w)
    graph = short.graph
    softmaxes = [n for n in graph.node if n.op_type == "Softmax"]
    assert len(softmaxes) == small.LAYERS
    # Cut the encoder behind its first layer: its output is the input of the second layer's projections.
    second = next(n for n in graph.node if "w_e1q" in n.input)
    last = next(n for n in graph.node if "last_hidden_state" in n.output)
    last.input[0] = second.input[0]
    keep = {"last_hidden_state"}
    nodes = []
    for node in reversed(graph.node):
        if keep & set(node.output):
            keep |= set(node.input)
            nodes.insert(0, node)
    del graph.node[:]
    graph.node.extend(nodes)
    place = small.save(
        tmp_path, config={"decoder_start_token_id": 5}, encoder_model=short,
        decoder_model=small.cross_decoder(w, cached=False), decoder_with_past_model=small.cross_decoder(w, cached=True),
    )  # fmt: skip
    letters(place)
    opened = attnx.open(place, device="cpu")
    for more in ({"target": "cd"}, {"generate": 3}):
        trace = opened.trace("ab", layers=[1], **more)  # type: ignore[arg-type]
        assert [(a.site.component, a.site.kind, a.site.layer) for a in trace.attentions] == [
            ("decoder", "self", 1), ("decoder", "cross", 1),
        ]  # fmt: skip
        with pytest.raises(attnx.AttnxError, match="no layer 7"):
            opened.trace("ab", layers=[7], **more)  # type: ignore[arg-type]
