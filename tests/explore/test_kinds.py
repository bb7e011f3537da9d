"""The explorer on models of every kind: what it shows is what `Model.trace` gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attnx
from attnx.cli.commands.explore import TEXT
from attnx.explore.desk import Desk
from attnx.explore.reader import prepare
from attnx.run.prompt import Prompt
from attnx.wording import Wording
from tests import small_models, small_senses


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> attnx.Model:
    folder = tmp_path_factory.mktemp("translator")
    weights = small_models.weights(4)
    small_models.save(
        folder,
        config={"decoder_start_token_id": 5},
        encoder_model=small_models.encoder(weights),
        decoder_model=small_models.cross_decoder(weights, cached=False),
        decoder_with_past_model=small_models.cross_decoder(weights, cached=True),
    )
    small_senses.letters(folder)
    return attnx.open(folder, device="cpu")


def test_encoder_decoder_and_cross_attention_are_all_there(translator: attnx.Model) -> None:
    desk = Desk(translator, "ejcjc", lambda text: Prompt(text, target="fcd"))
    whole = translator.trace("ejcjc", target="fcd")
    assert desk.measurement.axes[0].labels == whole.labels
    assert desk.sites == len(whole.attentions) == 6
    for desk.site, attention in enumerate(whole.attentions):
        for desk.head in range(2):
            np.testing.assert_allclose(desk.matrix().values, attention.need("weights")[0, desk.head], atol=1e-5)
            assert desk.matrix().title == f"{whole.labels[desk.site]} H{desk.head}"
        assert desk.queries().pieces == whole.queries_of(attention).pieces
    desk.open("jc")
    assert desk.reader.bare.memory is not None
    assert len(desk.reader.bare.memory) == 4


def test_what_a_decoder_wrote_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attnx.open("tiny-gpt", device="cpu")
    text = "The cat sat on the mat. The cat"
    found = prepare(model, Prompt(text, generate=4))
    assert found.prompt == Prompt(tokens=found.bare.tokens)
    whole = model.trace(text, generate=4)
    assert found.tokens.pieces == whole.tokens.pieces
    for at, attention in enumerate(whole.attentions):
        for head in range(6):
            got = found.trace(at, head).attentions[0]
            np.testing.assert_allclose(got.need("weights")[0, 0], attention.need("weights")[0, head], atol=1e-5)


def test_a_picture_has_patches_and_no_text(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model = attnx.open(small_senses.vit(tmp_path / "eyes"), device="cpu")
    picture = small_senses.bright(tmp_path / "picture.png", 2, 1)
    desk = Desk(model, "", lambda _: Prompt(image=picture))
    desk.find("r2c1")
    row = desk.matrix().values[desk.query]
    assert desk.queries().pieces[int(row.argmax())] == "r2c1"
    assert row.max() > 0.9


def test_the_command_feeds_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options reach the desk, and another text takes the place of the first."""
    from attnx.cli import app as cli

    seen: list[Desk] = []
    words: list[str] = []

    class Looked:
        return_code = None
        crash = None

        def __init__(self, desk: Desk, worded: Callable[[str], str]) -> None:
            seen.append(desk)
            words.append(worded(Wording("Fewer layers[ (<layers>)]; or <image=>.")))

        def run(self) -> None:
            pass

    monkeypatch.setattr("attnx.explore.app.Explorer", Looked)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert cli.run(["explore", "-m", "tiny-gpt", "The cat", "--generate", "2"]) == 0
    assert seen[0].reader.bare.generated == 2
    seen[0].open("The cat sat on")
    assert seen[0].reader.bare.generated == 2
    assert "sat" in "".join(seen[0].tokens.pieces)
    assert cli.run(["explore"]) == 0
    assert seen[1].text == TEXT
    assert cli.run(["explore", "--ids", "101,2009,102"]) == 0
    assert [int(i) for i in np.ravel(seen[2].tokens.ids)] == [101, 2009, 102]
    seen[2].open("tired")
    assert "tired" in seen[2].tokens.pieces
    assert words[0] == "Fewer layers; or --image FILE."  # explore has no --layer
