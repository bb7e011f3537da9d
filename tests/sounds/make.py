"""Makes truth.json: what the feature extractors of transformers (5.24) make of one sound. Not run by the tests.

python tests/sounds/make.py > tests/sounds/truth.json      # where transformers and torch are installed
"""

import json

import numpy as np

CASES = (
    ("WhisperFeatureExtractor", {"chunk_length": 1}, {}),
    ("WhisperFeatureExtractor", {"chunk_length": 1, "feature_size": 128, "n_fft": 512, "hop_length": 200}, {}),
    ("WhisperFeatureExtractor", {"chunk_length": 1, "do_normalize": True}, {"do_normalize": True}),
    ("Wav2Vec2FeatureExtractor", {}, {}),
    ("Wav2Vec2FeatureExtractor", {"do_normalize": False}, {}),
    ("ASTFeatureExtractor", {"max_length": 64}, {}),
    ("ASTFeatureExtractor", {"max_length": 20, "num_mel_bins": 40, "mean": -2.5, "std": 3.0}, {}),
    ("ASTFeatureExtractor", {"max_length": 60, "do_normalize": False}, {}),
    ("Speech2TextFeatureExtractor", {}, {}),
    ("Speech2TextFeatureExtractor", {"num_mel_bins": 40, "normalize_vars": False}, {}),
    ("Speech2TextFeatureExtractor", {"do_ceptral_normalize": False}, {}),
    ("SeamlessM4TFeatureExtractor", {}, {}),
    ("SeamlessM4TFeatureExtractor", {"padding_value": 1.0, "stride": 3}, {}),
)


def sound() -> np.ndarray:
    """A rising tone with noise and an offset, int16 [9000], at 16,000 samples a second."""
    t = np.arange(9000) / 16_000
    noise = np.random.default_rng(7).standard_normal(len(t))
    return np.round((0.4 * np.sin(2 * np.pi * (250 + 900 * t) * t) + 0.05 + 0.02 * noise) * 32767).astype("<i2")


def main() -> None:
    import transformers

    out = []
    for name, config, call in CASES:
        extractor = getattr(transformers, name)(**config)
        samples = (sound() / 2.0**15).astype(np.float32)
        made = extractor(samples, sampling_rate=16_000, return_tensors="np", **call)
        values = np.asarray(made[extractor.model_input_names[0]], np.float64)
        at = np.unique(np.linspace(0, values.size - 1, 24).astype(int))
        mask = np.asarray(made["attention_mask"]) if "attention_mask" in made and not call else None
        out.append(
            {
                "extractor": name,
                "config": config,
                "shape": values.shape,
                "at": at.tolist(),
                "values": [float(f"{v:.6g}") for v in values.ravel()[at]],
                "sum": float(f"{values.sum():.7g}"),
                "mask": None if mask is None else mask.tolist()[0],
            }
        )
    print("[" + ",\n".join(json.dumps(one) for one in out) + "]")  # noqa: T201


if __name__ == "__main__":
    main()
