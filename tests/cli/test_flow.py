"""`attnx flow`: rollout by multiplication, flow by another algorithm, norms by onnxruntime's tensors."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.analysed import _opened, bundled, causal, two_sided, values
from tests.cli.conftest import ANIMAL, Run

IT = 10


def rolled(layers: np.ndarray) -> np.ndarray:
    """[S,n,n] of means over heads."""
    out, below = [], np.eye(layers.shape[-1])
    for a in layers:
        below = (0.5 * a + 0.5 * np.eye(len(a))) @ below
        out.append(below)
    return np.stack(out)


def largest_flow(layers: np.ndarray, source: int, target: int) -> float:
    """Edmonds and Karp on the dense matrix of the layered graph."""
    depth, n = layers.shape[0], layers.shape[-1]
    room = np.zeros(((depth + 1) * n,) * 2)
    for level, a in enumerate(layers):
        mixed = 0.5 * a + 0.5 * np.eye(n)
        room[(level + 1) * n : (level + 2) * n, level * n : (level + 1) * n] = mixed
    start, end, total = depth * n + source, target, 0.0
    while True:
        before, front = np.full(len(room), -1), np.array([start])
        before[start] = start
        while len(front) and before[end] < 0:  # all that one more edge reaches at once: the shortest path comes first
            open_ = (room[front] > 1e-12) & (before < 0)
            new = np.flatnonzero(open_.any(0))
            before[new] = front[open_[:, new].argmax(0)]
            front = new
        if before[end] < 0:
            return total
        path, node = [], end
        while node != start:
            path.append((before[node], node))
            node = before[node]
        pushed = min(room[edge] for edge in path)
        for a, b in path:
            room[a, b] -= pushed
            room[b, a] += pushed
        total += pushed


def test_rollout(attnx: Run) -> None:
    got = attnx("flow", ANIMAL, "--json").document
    want = rolled(bundled(ANIMAL).weights.mean(1))
    np.testing.assert_allclose(values(got["rollout"]), want, atol=1e-5)
    assert got["flow"] is None
    assert got["norms"] is None
    np.testing.assert_allclose(values(got["attention"]), bundled(ANIMAL).weights[5].mean((0, 1)), atol=1e-5)


def test_flow_and_norms_of_one_token(attnx: Run) -> None:
    got = attnx("flow", ANIMAL, "-q", "it", "--json").document
    b = bundled(ANIMAL)
    flows = np.array([largest_flow(b.weights.mean(1), IT, key) for key in range(16)])
    np.testing.assert_allclose(values(got["flow"])[0], flows / flows.sum(), atol=1e-4)
    w = _opened()[3]["encoder.layer.5.attention.output.dense.weight"].astype(np.float64).reshape(12, 32, 384)
    carried = b.weights[5, :, IT] * np.linalg.norm(np.einsum("hkd,hde->hke", b.value[5], w), axis=-1)
    np.testing.assert_allclose(values(got["norms"]), (carried / carried.sum(-1, keepdims=True)).mean(0), atol=1e-5)
    np.testing.assert_allclose(values(got["attention"]), b.weights[5, :, IT].mean(0), atol=1e-5)
    assert "W_O" in got["norms"]["formula"]


def test_tables(attnx: Run) -> None:
    text = attnx("flow", ANIMAL, "-q", "it").out
    want = rolled(bundled(ANIMAL).weights.mean(1))[:, IT, 0]
    line = [line for line in text.splitlines() if line.startswith(" 0 [CLS]")][-1]
    assert [float(n) for n in line.split()[2:]] == pytest.approx(want.tolist(), abs=0.0051)
    assert "Abnar" not in text
    text = attnx("flow", ANIMAL, "-q", "it", "--explain").out
    for source in ("Abnar and Zuidema 2020", "Kobayashi et al. 2020", "rows normalised"):
        assert source in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "[CLS]" in attnx("flow", ANIMAL).out


def test_a_causal_model(attnx: Run, tmp_path: Path) -> None:
    case = causal(tmp_path / "m")
    a = np.stack([layer["weights"][0].mean(0) for layer in case.ran.decoder])
    got = attnx("flow", *case.args, "-q", "4", "--json").document
    np.testing.assert_allclose(values(got["rollout"]), rolled(a), atol=1e-5)
    assert values(got["flow"])[0, 5] == 0
    uniform = np.tri(6) / np.tri(6).sum(1, keepdims=True)
    even = rolled(np.stack([uniform, uniform]))
    want = np.divide(rolled(a), even, out=np.zeros_like(even), where=even > 0)
    got = attnx("flow", *case.args, "-q", "4", "--relative", "--json").document
    np.testing.assert_allclose(values(got["rollout"]), want / want.sum(-1, keepdims=True), atol=1e-5)
    assert any("experimental" in note for note in got["notes"])


def test_an_encoder_decoder(attnx: Run, tmp_path: Path) -> None:
    case = two_sided(tmp_path / "m")
    ran = case.ran
    below = rolled(np.stack([layer["weights"][0].mean(0) for layer in ran.encoder]))[-1]
    state, want = np.zeros((3, 5)), []
    for own, cross in zip(ran.decoder, ran.cross, strict=True):
        state = (0.5 * own["weights"][0].mean(0) + 0.5 * np.eye(3)) @ state
        state = 0.5 * state + 0.5 * cross["weights"][0].mean(0) @ below
        want.append(state)
    got = attnx("flow", *case.args, "-q", "2", "--json").document
    assert got["side"] == "cross"
    np.testing.assert_allclose(values(got["rollout"]), np.stack(want), atol=1e-5)
    encoder = attnx("flow", *case.args, "--side", "encoder", "--json").document
    np.testing.assert_allclose(values(encoder["rollout"])[-1], below, atol=1e-5)
    own = attnx("flow", *case.args, "--side", "decoder", "--json").document
    decoder = rolled(np.stack([layer["weights"][0].mean(0) for layer in ran.decoder]))
    np.testing.assert_allclose(values(own["rollout"]), decoder, atol=1e-5)
    attnx("flow", *case.args, "--side", "left", code=2)


@pytest.mark.parametrize("text", ["\u200b", "a"])
def test_empty_and_short_texts(attnx: Run, text: str) -> None:
    assert "rollout" in attnx("flow", text).out


def test_a_long_text_has_no_exact_flow_and_says_so(attnx: Run) -> None:
    done = attnx("flow", "word " * 600, "-q", "500", "-m", "tiny-gpt")
    assert "no exact flow" in done.err
    assert "rollout" in done.out
    assert "506 more keys: --all" in done.out


def test_misuse(attnx: Run) -> None:
    attnx("flow", ANIMAL, "-q", "dog", code=2)
    attnx("flow", ANIMAL, "--side", "cross", code=2)


def test_patches_are_followed_on_the_map_of_their_picture(attnx: Run) -> None:
    """Rollout by numpy: half of each layer's mean weights and half of the identity, one upon the other."""
    folder = Path(__file__).parents[1] / "families" / "dinov2"
    picture = ("--image", str(folder / "picture.png"), "-m", str(folder))
    found = attnx("flow", *picture, "--query", "r1c2", "--json").document
    with np.load(folder / "truth.npz") as truth:
        layers = [truth[f"weights.{i}"][0].astype(np.float64).mean(axis=0) for i in range(2)]
    want = np.eye(17)
    for weights in layers:
        want = (weights + np.eye(17)) / 2 @ want
    np.testing.assert_allclose(np.array(found["rollout"]["values"])[-1, 7], want[7], atol=1e-4)
    shown = attnx("flow", *picture, "--query", "r1c2").out
    assert "from r1c2 · rollout" in shown
    assert f"not on the map: [CLS] {want[7, 0]:.3f}" in shown
