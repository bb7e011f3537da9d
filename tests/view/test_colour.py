from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from attnx.view import colour
from attnx.view.colour import DIVERGING, LEVELS, SEQUENTIAL, oklab, xterm


def lightness(colours: np.ndarray) -> np.ndarray:
    """CIE L*, by its own formulas: not the one that the module uses."""
    part = np.asarray(colours, float) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def lab(colours: np.ndarray) -> np.ndarray:
    """CIE L*a*b*, D65."""
    part = np.asarray(colours, float) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, in linear RGB.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def seen(colours: np.ndarray, kind: str) -> np.ndarray:
    part = np.asarray(colours, float) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    out = np.clip(linear @ np.array(BLIND[kind]).T, 0, 1)
    return 255 * np.where(out <= 0.0031308, 12.92 * out, 1.055 * out ** (1 / 2.4) - 0.055)


def test_sequential_is_viridis() -> None:
    theirs = np.array(mpl.colormaps["viridis"].colors) * 255
    assert np.abs(theirs - SEQUENTIAL.colours).max() <= 2


def test_sequential_gets_lighter_in_even_steps() -> None:
    steps = np.diff(lightness(np.array(SEQUENTIAL.colours))[::16])
    assert (steps > 0).all()
    assert steps.max() / steps.min() < 2


def test_diverging_is_as_light_on_both_sides_and_darkest_in_the_middle() -> None:
    light = oklab(np.array(DIVERGING.colours))[:, 0]
    np.testing.assert_allclose(light, light[::-1], atol=0.01)
    assert (np.diff(light[LEVELS // 2 :]) >= -0.004).all()


@pytest.mark.parametrize("kind", BLIND)
def test_colour_blind_readers_tell_the_sides_and_the_levels_apart(kind: str) -> None:
    sides = lab(seen(np.array(DIVERGING.colours), kind))
    for away in (64, 96, 127):
        assert np.linalg.norm(sides[127 - away] - sides[128 + away]) > 12
    levels = lab(seen(np.array(SEQUENTIAL.colours)[::32], kind))
    assert (np.linalg.norm(np.diff(levels, axis=0), axis=1) > 6).all()


def test_256_colours_are_near_and_never_step_back() -> None:
    numbers = [colour.colour(SEQUENTIAL, (at + 0.5) / LEVELS, "256").number for at in range(LEVELS)]  # type: ignore[union-attr]
    chosen = np.array([xterm(number) for number in numbers])  # type: ignore[arg-type]
    assert (np.diff(lightness(chosen)) >= -1.5).all()
    assert len(set(numbers)) >= 10
    assert np.linalg.norm(lab(chosen) - lab(np.array(SEQUENTIAL.colours)), axis=1).mean() < 22


def test_256_diverging_keeps_its_sides() -> None:
    left = {colour.colour(DIVERGING, at / LEVELS, "256").number for at in range(LEVELS // 2 - 24)}  # type: ignore[union-attr]
    right = {colour.colour(DIVERGING, at / LEVELS, "256").number for at in range(LEVELS // 2 + 24, LEVELS)}  # type: ignore[union-attr]
    assert not left & right


def test_xterm_colours() -> None:
    assert [xterm(n) for n in (16, 21, 196, 231, 232, 255)] == [
        (0, 0, 0), (0, 0, 255), (255, 0, 0), (255, 255, 255), (8, 8, 8), (238, 238, 238),
    ]  # fmt: skip


def test_shades_without_colour() -> None:
    assert "".join(colour.shade(SEQUENTIAL, place) for place in (0, 0.19, 0.21, 0.5, 0.7, 0.81, 1)) == "  ░▒▓██"
    assert "".join(colour.shade(DIVERGING, place) for place in (0, 0.15, 0.35, 0.45, 0.5, 0.65, 1)) == "#≡-  ░█"
    lower = {colour.shade(DIVERGING, place, ascii_only=flag) for place in (0.0, 0.1, 0.2, 0.3, 0.38) for flag in (0, 1)}
    upper = {colour.shade(DIVERGING, place, ascii_only=flag) for place in (1.0, 0.9, 0.8, 0.7, 0.62) for flag in (0, 1)}
    assert not lower & upper


@pytest.mark.parametrize("depth", ["true", "256"])
@pytest.mark.parametrize("ramp", [SEQUENTIAL, DIVERGING])
def test_text_on_colours_can_be_read(ramp: colour.Ramp, depth: str) -> None:
    def luminance(rgb: tuple[int, int, int]) -> float:
        part = np.array(rgb) / 255
        return float(
            np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    for at in range(LEVELS):
        style = colour.ink(ramp, (at + 0.5) / LEVELS, depth)  # type: ignore[arg-type]
        front, back = style.color.get_truecolor(), style.bgcolor.get_truecolor()  # type: ignore[union-attr]
        if depth == "256":
            back = xterm(style.bgcolor.number)  # type: ignore[union-attr, arg-type, assignment]
        low, high = sorted((luminance(tuple(front)), luminance(tuple(back))))  # type: ignore[arg-type]
        assert (high + 0.05) / (low + 0.05) >= 4.5
