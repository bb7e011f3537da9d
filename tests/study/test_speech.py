"""Words and seconds: the heads that are read, prompts, targets, windows, one file; the numbers: see test_families."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import attnx
from attnx.errors import InputError, ModelError, UsageError
from attnx.study.request import Head
from attnx.study.speech import Request, Speech, alignment_heads, time_words

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_families import _warped, faults  # noqa: E402
from family_sounds import speech  # noqa: E402

WORDS = ROOT / "tests" / "families" / "whisper-words"
SHORT = ROOT / "tests" / "families" / "whisper-short"


def changed(folder: Path, **told: object) -> Path:
    """The same model with another configuration; None takes a field out."""
    shutil.copytree(WORDS, folder)
    return configured(folder, **told)


def configured(folder: Path, **told: object) -> Path:
    """A copy of the model, with another configuration."""
    config = {**json.loads((WORDS / "generation_config.json").read_text(encoding="utf-8")), **told}
    kept = json.dumps({k: v for k, v in config.items() if v is not None})
    (folder / "generation_config.json").write_text(kept, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy, whose graphs are read once however it is configured."""
    return changed(tmp_path_factory.mktemp("words") / "m")


def heard(place: Path, tmp_path: Path, seconds: float, **asked: object) -> Speech:
    speech(tmp_path / "speech.wav", seconds)
    return time_words(attnx.open(place, device="cpu"), tmp_path / "speech.wav", Request(**{"count": 24, **asked}))  # type: ignore[arg-type]


def test_one_time_off_is_found(tmp_path: Path) -> None:
    folder = changed(tmp_path / "m")
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    about["speech"][1]["ends"][3] += 0.02
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    assert faults(folder) == ["speech 1: times are off by 0.02 s"]


def test_without_alignment_heads_the_upper_half_is_read_and_said(tmp_path: Path) -> None:
    model = attnx.open(changed(tmp_path / "m", alignment_heads=None), device="cpu")
    heads, note = alignment_heads(model)
    assert heads == ((1, 0), (1, 1))
    assert note is not None
    assert "upper half" in note
    got = heard(tmp_path / "m", tmp_path, 1.3)
    assert note in got.notes
    named = heard(WORDS, tmp_path, 1.3, heads=(Head(1, 0), Head(1, 1)))
    np.testing.assert_array_equal(got.ends, named.ends)
    assert not any("upper half" in said for said in named.notes)
    again = _warped(changed(tmp_path / "again", alignment_heads=[[1, 0], [1, 1]]), got, 1.3, None)
    assert again is not None
    np.testing.assert_allclose(got.ends, [*again, again[-1]], atol=1e-6)


def test_heads_that_are_not_there() -> None:
    model = attnx.open(WORDS, device="cpu")
    assert alignment_heads(model, (Head(None, 1),))[0] == ((0, 1), (1, 1))
    for head, said in ((Head(2, 0), "no layer 2"), (Head(0, 5), "no head 5")):
        with pytest.raises(UsageError, match=said):
            alignment_heads(model, (head,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alignment_heads", [0, [1, 1]]), ("alignment_heads", [["1", 0]]), ("alignment_heads", [[1.5, 0]]),
        ("alignment_heads", {"1": 0}), ("alignment_heads", [[9, 0]]), ("alignment_heads", [[1, 9]]),
        ("median_filter_width", 4), ("median_filter_width", "7"), ("max_target_positions", "448"),
        ("no_timestamps_token_id", [1]),
    ],
)  # fmt: skip
def test_a_configuration_that_is_wrong_is_told_by_name(name: str, value: object, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{name} is .* was expected"):
        heard(configured(copied, **{name: value}), tmp_path, 1.3)


def test_what_is_said_may_be_told(tmp_path: Path) -> None:
    tokenizer = attnx.open(WORDS).tokenizer
    got = heard(WORDS, tmp_path, 1.3, target="the cat, it sat!")
    assert tokenizer.decode(got.tokens.ids.tolist()) == " the cat, it sat!"
    assert "".join(word.text for word in got.words) == " the cat, it sat!"
    assert [word.text for word in got.words][-1].endswith("!")
    assert got.words[0].start == 0
    for word, after in zip(got.words, got.words[1:], strict=False):
        assert word.end == after.start
    assert got.language == heard(WORDS, tmp_path, 1.3).language


@pytest.mark.parametrize("told", [{}, {"lang_to_id": None}])
def test_a_forced_language_without_spaces_is_cut_by_its_characters(
    told: dict[str, object], copied: Path, tmp_path: Path
) -> None:
    """Older configurations name no languages: then the token that is forced says which it is."""
    tokenizer = attnx.open(WORDS).tokenizer
    ids = [tokenizer.token_id(f"<|{name}|>") for name in ("zh", "transcribe")]
    forced = {"task": None, "forced_decoder_ids": [[1, ids[0]], [2, ids[1]]], **told}
    got = heard(configured(copied, **forced), tmp_path, 1.3, target="犬と鳥")
    assert got.language == "zh"
    assert [word.text.strip() for word in got.words if word.text.strip()] == list("犬と鳥")
    other = heard(configured(copied, task=None, language="German"), tmp_path, 1.3, target="犬と鳥")
    assert other.language == "de"
    assert [word.text for word in other.words] == [" 犬と鳥"]


def test_prompts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leaves no room"):
        heard(WORDS, tmp_path, 1.3, prompt="the cat " * 40)
    with pytest.raises(ModelError, match="takes no prompt"):
        heard(SHORT, tmp_path, 1.3, prompt="the cat")


def test_longer_sounds_are_heard_in_windows(tmp_path: Path) -> None:
    got = heard(WORDS, tmp_path, 5.0, prompt="the dog")
    assert got.seconds == 5
    assert got.windows[0] == 0
    assert len(got.windows) >= 3
    assert all(0 < b - a <= 2 for a, b in zip(got.windows, got.windows[1:], strict=False))
    assert all(0 <= word.start <= word.end <= 5.001 for word in got.words)
    begin = attnx.open(WORDS).tokenizer.token_id("<|0.00|>")
    assert any(number >= begin for number in got.tokens.ids)
    assert not any("<|" in word.text for word in got.words)
    with pytest.raises(UsageError, match=r"transcribes 2 seconds of sound at most, and this one has 5\.0"):
        heard(WORDS, tmp_path, 5.0, target="the cat")


def test_windows_of_a_model_without_marks_of_time(tmp_path: Path) -> None:
    got = heard(SHORT, tmp_path, 5.0, count=6)
    assert got.windows == (0.0, 2.0, 4.0)
    assert len(got.tokens) == 18
    assert any("maybe within a word" in note for note in got.notes)
    for at, start in enumerate(got.windows):
        assert ((got.ends[6 * at : 6 * at + 6] >= start) & (got.ends[6 * at : 6 * at + 6] <= start + 2)).all()


def test_encoder_and_decoder_as_one_graph(tmp_path: Path) -> None:
    """The two files made one: the same tokens, times and words; and what the file gives by itself."""
    first, second = (onnx.load(WORDS / f"{side}_model.onnx") for side in ("encoder", "decoder"))
    for model, mark in ((first, "E/"), (second, "D/")):
        kept = {"": "", "input_features": "input_features", "input_ids": "decoder_input_ids", "logits": "logits",
                "encoder_hidden_states": "E/last_hidden_state"}  # fmt: skip
        for node in model.graph.node:
            node.name = mark + node.name
            for names in (node.input, node.output):
                names[:] = [kept.get(name, mark + name) for name in names]
        for tensor in model.graph.initializer:
            tensor.name = mark + tensor.name
    second.graph.input[0].name = "decoder_input_ids"
    graph = helper.make_graph(
        [*first.graph.node, *second.graph.node], "g", [first.graph.input[0], second.graph.input[0]],
        [second.graph.output[0]], [*first.graph.initializer, *second.graph.initializer],
    )  # fmt: skip
    folder = changed(tmp_path / "m")
    for name in ("encoder", "decoder"):
        (folder / f"{name}_model.onnx").unlink()
    onnx.save(helper.make_model(graph, opset_imports=second.opset_import, ir_version=8), folder / "model.onnx")
    assert faults(folder) == []
    model = attnx.open(folder, device="cpu")
    trace = model.trace(audio=folder / "speech.wav", generate=6)
    both = attnx.open(WORDS, device="cpu").trace(audio=folder / "speech.wav", generate=6)
    assert trace.tokens.ids.tolist() == both.tokens.ids.tolist()
    assert trace.memory is not None
    assert trace.memory.pieces[:3] == ("0.00s", "0.02s", "0.04s")
    sorts = [(a.site.kind, a.site.component) for a in trace.attentions]
    assert sorts == [(a.site.kind, a.site.component) for a in both.attentions]
    for one, two in zip(trace.attentions, both.attentions, strict=True):
        np.testing.assert_allclose(one.need("weights"), two.need("weights"), atol=1e-5)


def test_nothing_but_the_alignment_heads_leaves_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnx.session.ort import Session

    sizes: list[tuple[int, ...]] = []
    whole = Session.run

    def run(self: Session, *args: object, **named: object) -> dict[str, np.ndarray]:
        values = whole(self, *args, **named)  # type: ignore[arg-type]
        sizes.extend(v.shape for v in values.values() if v.ndim == 4)
        return values

    monkeypatch.setattr(Session, "run", run)
    heard(WORDS, tmp_path, 1.3, heads=(Head(1, 0),))
    assert sizes
    assert all(shape[1] == 1 and shape[3] == 100 for shape in sizes)


def test_what_cannot_be_timed(tmp_path: Path) -> None:
    speech(tmp_path / "speech.wav", 1.3)
    with pytest.raises(UsageError, match="takes no sound"):
        time_words(attnx.open("minilm", device="cpu"), tmp_path / "speech.wav", Request())
    with pytest.raises(InputError, match="no file"):
        time_words(attnx.open(WORDS, device="cpu"), tmp_path / "nothing.wav", Request())
