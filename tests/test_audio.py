"""Sound: WAV files read by hand, spectra by plain sums, positions in seconds."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.errors import InputError, ModelError, UsageError
from attnx.feed import audio
from attnx.feed.audio import patches_of, read_wav, resample
from attnx.feed.extractors import Heard, find, rate_of
from attnx.feed.patches import Grid
from attnx.feed.spectra import filter_bank, log_mel, mel_filters
from attnx.session.ort import Slot
from attnx.tokens.config import Config
from tests import small_models as small
from tests.small_senses import listener, write
from tests.sounds.make import sound

SOUNDS = Path(__file__).parent / "sounds"


def test_every_width_and_two_channels(tmp_path: Path) -> None:
    files = {
        1: struct.pack("<4B", 0, 64, 128, 192),
        2: struct.pack("<4h", -(2**15), -(2**14), 0, 2**14),
        3: b"".join((v & 0xFFFFFF).to_bytes(3, "little") for v in (-(2**23), -(2**22), 0, 2**22)),
        4: struct.pack("<4i", -(2**31), -(2**30), 0, 2**30),
    }
    for width, frames in files.items():
        samples, rate = read_wav(write(tmp_path / f"{width}.wav", frames, width=width, rate=8000))
        assert rate == 8000
        np.testing.assert_allclose(samples, [-1, -0.5, 0, 0.5])
    samples, _ = read_wav(write(tmp_path / "two.wav", files[2], channels=2))
    np.testing.assert_allclose(samples, [-0.75, 0.25])
    (tmp_path / "no.wav").write_text("no sound")
    for name, said in (("no.wav", "not a WAV file"), ("none.wav", "there is no file")):
        with pytest.raises(InputError, match=said):
            read_wav(tmp_path / name)
    with pytest.raises(InputError, match="no samples"):
        read_wav(write(tmp_path / "empty.wav", b""))


def test_resampling_keeps_a_tone() -> None:
    def tone(rate: int) -> np.ndarray:
        return np.sin(2 * np.pi * 440 * np.arange(rate) / rate)

    for rate, wanted in ((44_100, 16_000), (8_000, 16_000)):
        np.testing.assert_allclose(resample(tone(rate), rate, wanted), tone(wanted), atol=1e-6)
    high = np.sin(2 * np.pi * 10_000 * np.arange(44_100) / 44_100)
    assert np.abs(resample(high, 44_100, 16_000)).max() < 1e-6


def test_filters_are_triangles_of_area_one() -> None:
    filters = mel_filters(80, 400, 16_000)
    assert filters.shape == (80, 201)
    fine = mel_filters(80, 400_000, 16_000)
    np.testing.assert_allclose(fine.sum(1) * 16_000 / 400_000, 1, rtol=1e-3)
    # Slaney's scale: 66.7 Hz a mel up to 1000 Hz, then 27 mels for a factor of 6.4; 80 bands end at 8000 Hz.
    top = 15 + 27 * np.log(8) / np.log(6.4)
    peaks = np.arange(1, 81) * top / 81
    hertz = np.where(peaks < 15, peaks * 200 / 3, 1000 * 6.4 ** ((peaks - 15) / 27))
    np.testing.assert_allclose(fine.argmax(1) * 16_000 / 400_000, hertz, atol=0.05)


def test_log_mel_by_plain_sums() -> None:
    rng = np.random.default_rng(1)
    samples = rng.standard_normal(800) * 0.1
    got = log_mel(samples, 1600)
    assert got.shape == (80, 10)
    padded = np.concatenate([samples[200:0:-1], samples, np.zeros(1000)])
    hann = np.array([0.5 - 0.5 * np.cos(2 * np.pi * n / 400) for n in range(400)])
    wave_numbers = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    power = np.array([np.abs(wave_numbers @ (padded[t * 160 : t * 160 + 400] * hann)) ** 2 for t in range(9)]).T
    level = np.log10(np.maximum(mel_filters(80, 400, 16_000) @ power, 1e-10))
    want = (np.maximum(level, level.max() - 8) + 4) / 4
    np.testing.assert_allclose(got[:, :9], want, atol=1e-9)


def test_positions_are_seconds_and_the_loud_one_is_found(tmp_path: Path) -> None:
    samples = np.zeros(8000)
    samples[4000:4800] = np.sin(np.arange(800) * 0.9) * 0.5
    path = write(tmp_path / "beep.wav", (samples * 32767).astype("<i2").tobytes())
    trace = attnx.open(listener(tmp_path / "ears"), device="cpu").trace(audio=path)
    assert trace.tokens.pieces[:3] == ("0.00s", "0.01s", "0.02s")
    assert len(trace.tokens) == 50
    weights = trace.attentions[0].need("weights")[0, 0]
    heard = log_mel(np.round(samples * 32767) / 32768, 8000).mean(axis=0) + 1.5
    scores = np.exp(4 * np.outer(heard, heard))
    np.testing.assert_allclose(weights, scores / scores.sum(1, keepdims=True), atol=1e-4)
    assert 0.24 <= int(heard.argmax()) / 100 <= 0.30


def test_a_listener_that_writes_attends_to_seconds(tmp_path: Path) -> None:
    w = small.weights(4)
    rng = np.random.default_rng(2)
    lift = rng.standard_normal((80, small.WIDTH)).astype(np.float32) / 4
    nodes = [
        helper.make_node("Transpose", ["input_features"], ["x"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["x", "lift"], ["last_hidden_state"], name="embed"),
    ]
    graph = helper.make_graph(
        nodes, "ears", [helper.make_tensor_value_info("input_features", TensorProto.FLOAT, [1, 80, 20])],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [1, 20, small.WIDTH])],
        [numpy_helper.from_array(lift, "lift")],
    )  # fmt: skip
    ears = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    place = small.save(
        tmp_path / "m",
        config={"decoder_start_token_id": 5, "forced_decoder_ids": [[1, 8]]},
        encoder_model=ears,
        decoder_model=small.cross_decoder(w, cached=False),
        decoder_with_past_model=small.cross_decoder(w, cached=True),
    )
    samples = (rng.standard_normal(3200) * 3000).astype("<i2")
    trace = attnx.open(place, device="cpu").trace(audio=write(tmp_path / "a.wav", samples.tobytes()), generate=4)
    assert trace.tokens.ids[:2].tolist() == [5, 8]
    assert trace.generated == 4
    assert trace.memory is not None
    assert trace.memory.pieces == tuple(f"{i / 100:.2f}s" for i in range(20))
    cross = [a for a in trace.attentions if a.site.kind == "cross"]
    hidden = log_mel(samples / 2.0**15, 3200).T @ lift.astype(np.float64)
    key = (hidden @ w["c0k"]).reshape(20, 2, 8).transpose(1, 0, 2)
    np.testing.assert_allclose(cross[0].need("key")[0], key, atol=1e-3)
    assert cross[0].need("weights").shape == (1, 2, 6, 20)


def test_what_does_not_listen(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes no sound"):
        attnx.open("minilm", device="cpu").trace(audio=write(tmp_path / "a.wav", b"\0\0"))


@pytest.mark.parametrize("truth", json.loads((SOUNDS / "truth.json").read_text()), ids=lambda t: t["extractor"][:9])
def test_features_are_those_of_the_extractor_that_is_named(truth: dict[str, Any]) -> None:
    config = Config({"feature_extractor_type": truth["extractor"], **truth["config"]}, "preprocessor_config.json")
    slot = Slot("x", (1, None) if truth["extractor"].startswith("Wav2Vec2") else (1, None, None), "tensor(float)")
    extract, guessed = find(config, slot)
    heard = extract(sound() / 2.0**15, config, slot)
    assert guessed == ()
    assert list(heard.array.shape) == truth["shape"]
    np.testing.assert_allclose(heard.array.ravel()[truth["at"]], truth["values"], rtol=2e-4, atol=2e-3)
    np.testing.assert_allclose(heard.array.sum(), truth["sum"], rtol=1e-4, atol=0.5)
    if truth["mask"] is not None:
        assert heard.mask is not None
        assert heard.mask.tolist() == [truth["mask"]]


def test_filter_banks_by_plain_sums() -> None:
    samples = sound()[:1000].astype(np.float64)
    got = filter_bank(samples, 6, povey=True)
    assert got.shape == (4, 6)

    def mel(hertz: float) -> float:
        return 1127 * math.log(1 + hertz / 700)

    centres = [mel(20) + (mel(8000) - mel(20)) * i / 7 for i in range(8)]
    frame = samples[160:560] - samples[160:560].mean()
    emphasised = [frame[0] * 0.03, *(frame[n] - 0.97 * frame[n - 1] for n in range(1, 400))]
    window = [(0.5 - 0.5 * math.cos(2 * math.pi * n / 399)) ** 0.85 for n in range(400)]
    turns = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512)
    power = np.abs(turns @ (np.array(emphasised) * window)) ** 2
    for band in range(6):
        low, middle, high = centres[band : band + 3]
        heights = [
            max(0, min((m - low) / (middle - low), (high - m) / (high - middle)))
            for m in map(mel, np.arange(257) * 31.25)
        ]
        assert got[1, band] == pytest.approx(math.log(power @ heights), abs=1e-9)


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        ({"feature_extractor_type": "ClapFeatureExtractor"}, (1, None, None), "names ClapFeatureExtractor"),
        ({}, (1, 1024, 128), "nothing names a feature extractor"),
        ({}, (1, None, 80), "nothing names a feature extractor"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "sampling_rate": 8000}, (1, 4, 128), "8000 samples"),
        ({"feature_extractor_type": 7}, (1, None), "feature_extractor_type is 7, and a text was expected"),
        ({"hop_length": 0}, (1, 80, None), "hop_length is 0, and a whole number from 1"),
        ({"n_fft": "400"}, (1, 80, None), "n_fft is '400'"),
        ({"sampling_rate": 0}, (1, None), "sampling_rate is 0, and a whole number from 1000"),
        ({"sampling_rate": True}, (1, None), "sampling_rate is True"),
        ({"do_normalize": "yes"}, (1, None), "do_normalize is 'yes', and true or false"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "std": 0}, (1, 9, 128), "std is 0"),
        ({"feature_extractor_type": "ASTFeatureExtractor", "mean": "x"}, (1, 9, 128), "mean is 'x', and a number"),
    ],
)  # fmt: skip
def test_what_is_not_here_or_no_number_is_refused_by_name(
    config: dict[str, Any], shape: tuple[int | None, ...], said: str
) -> None:
    named, slot = Config(config, "preprocessor_config.json"), Slot("x", shape, "tensor(float)")
    with pytest.raises(ModelError, match=said):
        find(named, slot)[0](np.ones(rate_of(named)), named, slot)


def test_features_that_are_a_guess_are_said_to_be(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sound().tobytes())
    place = listener(tmp_path / "ears")
    trace = attnx.open(place, device="cpu").trace(audio=path)
    assert any("taken to be Whisper's log-mel spectrogram" in note for note in trace.notes)
    (place / "processor_config.json").write_text(
        json.dumps({"feature_extractor": {"feature_extractor_type": "ASTFeatureExtractor"}})
    )
    with pytest.raises(InputError, match=r"shape \[1, 1024, 128\]"):
        attnx.open(place, device="cpu").trace(audio=path)
    (place / "preprocessor_config.json").write_text(json.dumps({"feature_extractor_type": "WhisperFeatureExtractor"}))
    notes = attnx.open(place, device="cpu").trace(audio=path).notes
    assert notes == ("cut to 0.5 seconds of 0.6, which is all that the model hears",)


def test_wav_heads_that_cannot_be(tmp_path: Path) -> None:
    for rate in (0, 1, 2**32 - 1):
        path = write(tmp_path / "r.wav", b"\0\0" * 9)
        content = bytearray(path.read_bytes())
        content[24:28] = struct.pack("<I", rate)
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"rate is {rate} Hz"):
            read_wav(path)
    path = write(tmp_path / "w.wav", b"\0\0" * 8)
    content = bytearray(path.read_bytes())
    content[34:36] = struct.pack("<H", 64)
    path.write_bytes(content)
    with pytest.raises(InputError, match="64 bits a sample"):
        read_wav(path)


def test_a_spectrogram_cut_into_patches_names_them_by_their_place() -> None:
    config = Config({"patch_size": 16, "frequency_stride": 10, "time_stride": 10})
    assert patches_of(config, np.zeros((1, 1024, 128))) == Grid(12, 101, 2)
    heard = Heard(np.zeros((1, 1024, 128)), 10.24, grid=Grid(12, 101, 2))
    named = heard.name(1214)
    assert (named.pieces[:3], named.pieces[-1]) == (("[CLS]", "[DIST]", "r0c0"), "r11c100")
    assert heard.name(4).pieces == ("0.00s", "2.56s", "5.12s", "7.68s")


@pytest.mark.parametrize(("rate", "wanted"), [(1000, 800), (1000, 1600), (1102, 400)])
def test_a_long_sound_is_resampled_in_stretches(rate: int, wanted: int) -> None:
    """Tones below half of either rate are the same tones at the new one, where stretches meet too."""
    seconds = 2 * audio.STRETCH + 7.3

    def tones(at: np.ndarray) -> np.ndarray:
        return 0.4 * np.sin(2 * np.pi * 37.3 * at) + 0.3 * np.sin(2 * np.pi * 121.7 * at + 1)

    got = audio.resample(tones(np.arange(round(seconds * rate)) / rate), rate, wanted)
    assert len(got) == round(round(seconds * rate) * wanted / rate)
    gap = np.abs(got - tones(np.arange(len(got)) / wanted))
    assert gap[2 * wanted : -2 * wanted].max() < 2e-3
