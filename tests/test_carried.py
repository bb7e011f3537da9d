"""A model on another machine: its own files where they are the same, else those of the machine where it is from."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import attnx
from attnx.catalog.models import bundled_root
from attnx.errors import RunError
from attnx.model import Model
from attnx.scan.carried import carried
from attnx.session import cache

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as on the Hub: weights in a file of their own, the tokenizer one folder up."""
    folder, source = tmp_path_factory.mktemp("hub") / "model", bundled_root() / "tiny-gpt"
    (folder / "onnx").mkdir(parents=True)
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(source / name, folder)
    proto = onnx.load(source / "model.onnx")
    onnx.save_model(proto, folder / "onnx" / "model.onnx", save_as_external_data=True, location="model.onnx_data")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "here" / "model")


def weights(model: Model) -> np.ndarray:
    found = model.trace(TEXT).attentions[0].weights
    assert found is not None
    return found


def fetching(old: Path, new: Path) -> tuple[Callable[[Path], bytes], list[str]]:
    """What reads files of a folder that has another name now, and the names of what was read."""
    read: list[str] = []

    def fetch(path: Path) -> bytes:
        read.append(path.name)
        return (new / path.relative_to(old.resolve())).read_bytes()

    return fetch, read


def never(path: Path) -> bytes:
    raise AssertionError(f"{path} was fetched")


def test_a_machine_with_the_same_files_uses_its_own(folder: Path) -> None:
    model = attnx.open(folder, device="cpu")
    assert carried(model).arguments(never) == model.elsewhere()


def test_a_machine_without_them_gets_them_once(folder: Path) -> None:
    model = attnx.open(folder, device="cpu")
    want, parted = weights(model), carried(model)
    fetch, read = fetching(folder, folder.rename(folder.with_name("gone")))
    again = Model(**parted.arguments(fetch), device="cpu")
    assert not again.path.is_relative_to(folder)
    np.testing.assert_array_equal(weights(again), want)
    assert sorted(read) == ["config.json", "model.onnx", "model.onnx_data", "tokenizer.json"]
    assert parted.arguments(never)["path"] == again.path  # it is kept


@pytest.mark.parametrize("name", ["onnx/model.onnx_data", "tokenizer.json"])
def test_a_machine_with_other_files_of_that_name_does_not_use_them(name: str, folder: Path) -> None:
    """Of the same size, too: nothing but what they hold tells them apart."""
    model = attnx.open(folder, device="cpu")
    want, parted = weights(model), carried(model)
    fetch, read = fetching(folder, shutil.copytree(folder, folder.with_name("there")))
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2 :] = raw[len(raw) // 2 :][::-1]
    (folder / name).write_bytes(raw)
    np.testing.assert_array_equal(weights(Model(**parted.arguments(fetch), device="cpu")), want)
    assert Path(name).name in read


def test_a_machine_that_keeps_nothing_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = carried(attnx.open(folder, device="cpu"))
    fetch, _ = fetching(folder, folder.rename(folder.with_name("gone")))
    monkeypatch.setenv(cache.VARIABLE, "off")
    with pytest.raises(RunError, match=r"has not the files of .*, and keeps nothing"):
        parted.arguments(fetch)
    blocked = folder.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(blocked / "cache"))
    with pytest.raises(RunError, match="they cannot be written to"):
        parted.arguments(fetch)


def test_what_was_carried_is_cleared_with_the_cache(folder: Path) -> None:
    parted = carried(attnx.open(folder, device="cpu"))
    size = sum(file.size for file in parted.files)
    fetch, _ = fetching(folder, folder.rename(folder.with_name("gone")))
    entries, before = cache.held()
    parted.arguments(fetch)
    assert cache.held() == (entries + 1, before + size)
    assert cache.clear() == (entries + 1, before + size)
    assert cache.held() == (0, 0)


def test_a_model_behind_links_is_opened_again(folder: Path, tmp_path: Path) -> None:
    """The Hub's cache: every file is a link to one that is named by its digest, in another folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    for number, file in enumerate(path for path in folder.rglob("*") if path.is_file()):
        place = snapshot / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.rename(blobs / f"{number:064x}"))
    model = attnx.open(snapshot, device="cpu")
    want = weights(model)
    np.testing.assert_array_equal(weights(model.again()), want)
    parted = carried(model)
    fetch, read = fetching(blobs, blobs)
    snapshot.rename(tmp_path / "gone")
    np.testing.assert_array_equal(weights(Model(**parted.arguments(fetch), device="cpu")), want)
    assert len(read) == 4
