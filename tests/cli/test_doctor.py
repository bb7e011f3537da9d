"""doctor says what works and what does not: each fault is planted, and must be found with its remedy."""

from __future__ import annotations

import io
import json
import shutil
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attnx import model
from attnx.errors import DeviceError, ModelError
from attnx.installed import pip
from attnx.session import cache
from attnx.study import health
from attnx.view.health import health as view
from tests.cli.conftest import ANIMAL, MINILM, Oracle, Run


def by_name(found: list[health.Finding]) -> dict[str, health.Finding]:
    return {f.name: f for f in found}


def test_all_is_well(attnx: Run) -> None:
    done = attnx("doctor", "--json")
    findings = done.document["findings"]
    assert {f["part"] for f in findings} >= {"versions", "devices", "cache", "models", "self-test"}
    assert [f for f in findings if f["state"] == "bad"] == []
    said = {f["name"]: f["said"] for f in findings}
    assert said["numpy"] == metadata.version("numpy")
    assert said["cpu"] == "runs (cpu)"
    assert attnx("doctor").out.startswith("nothing to mend\n")
    text = attnx("doctor", "--all").out
    assert text.rstrip().endswith("nothing to mend")
    assert all(name in text for name in said)


def test_the_stored_values_are_onnxruntimes_own(oracle: object) -> None:
    stored = health.reference()
    assert stored["text"] == ANIMAL
    want: Oracle = oracle(ANIMAL)  # type: ignore[operator]
    rows = stored["rows"]
    assert isinstance(rows, list)
    assert len(rows) >= 6
    for row in rows:
        np.testing.assert_allclose(row["weights"], want.weights[row["layer"], row["head"], row["query"]], atol=2e-6)
        assert want.pieces[row["query"]] == "it"


def test_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch, attnx: Run) -> None:
    stored = json.loads(json.dumps(health.reference()))
    stored["rows"][3]["weights"][2] += 0.01
    monkeypatch.setattr("attnx.study.health.reference", lambda: stored)
    (found,) = health.self_test(model.open)
    assert found.state == "bad"
    assert "differ from the stored ones by 0.01" in found.said
    done = attnx("doctor", code=5)
    assert done.out.startswith("1 to mend\n")
    assert "self-test  !! minilm: " in done.out
    assert found.remedy in " ".join(done.out.split())


def test_a_model_that_cannot_be_opened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModelError("gone", "bring it back")

    (found,) = health.self_test(fail)
    assert (found.state, found.said, found.remedy) == ("bad", "gone", "bring it back")


def test_both_onnxruntimes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnx.study.health._version", lambda name: "1.2.3")
    found = by_name(list(health.versions()))["onnxruntime twice"]
    assert found.state == "bad"
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in found.remedy


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnx.study.health._version", lambda name: None)
    found = by_name(list(health.versions()))
    assert found["onnxruntime"].state == found["numpy"].state == "bad"
    assert found["ray"].state == "note"
    assert "[scan]'" in found["ray"].said


def test_cuda_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnx.session import ort as session

    real = session.open_session

    def without_cuda(*args: object, device: str = "auto", **more: object) -> object:
        if device == "cuda":
            raise DeviceError("could not load its CUDA provider", "do this")
        return real(*args, device=device, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("attnx.session.ort.has_driver", lambda: True)
    monkeypatch.setattr("attnx.session.ort.built_in", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("attnx.session.ort.open_session", without_cuda)
    monkeypatch.setattr("attnx.study.health.library", lambda name, number: None if name == "cudnn" else "/here")
    found = by_name(list(health.devices()))
    assert (found["cpu"].state, found["cuda"].state, found["cuda"].remedy) == ("good", "bad", "do this")
    libraries = by_name(list(health.cuda()))
    assert (libraries["libcudnn 9"].state, libraries["libcudnn 9"].remedy) == ("bad", pip("cuda"))
    assert libraries["libcufft 12"].said == "/here"


def test_without_a_driver_nothing_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnx.session.ort.has_driver", lambda: False)
    monkeypatch.setattr("attnx.session.ort.built_in", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("attnx.study.health.library", lambda name, number: None)
    assert {f.state for f in [*health.devices(), *health.cuda()]} == {"good", "note"}


def test_a_library_in_a_wheel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "nvidia" / "some" / "lib"
    place.mkdir(parents=True)
    (place / "libneverheardof.so.9").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert health.library("neverheardof", "9") == str(place / "libneverheardof.so.9")
    assert health.library("neverheardof", "8") is None


def test_a_bundled_file_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MINILM, tmp_path / "minilm")
    monkeypatch.setattr("attnx.catalog.models.bundled_root", lambda: tmp_path)
    assert [f.state for f in health.models()] == ["good"]
    (tmp_path / "minilm" / "tokenizer.json").write_text("{}")
    (found,) = health.models()
    assert found.state == "bad"
    assert found.said.startswith("tokenizer.json:")


def test_the_cache_and_clearing_it(attnx: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    assert cache.write("entry", {"a": 1}, b"12345")
    assert "1 entry" in by_name(list(health.cache()))["folder"].said
    done = attnx("doctor", "--clear-cache")
    assert "cleared the cache: 1 entry" in done.err
    assert cache.read("entry") is None
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert [f.state for f in health.cache()] == ["note"]
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv(cache.VARIABLE, str(blocked / "cache"))
    assert by_name(list(health.cache()))["writing"].state == "note"


def test_a_line_that_does_not_fit_goes_on_where_it_began() -> None:
    console = Console(width=30, file=io.StringIO())
    console.print(view([("devices", "cpu", "note", "there is no driver on this machine", "install one")]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "devices"
    assert lines[1].startswith("  -- cpu  there")
    assert lines[-2:] == ["", "nothing to mend"]
    assert all(line.startswith(" " * 10) and line[10] != " " for line in lines[2:-2])
    assert " ".join(line[10:] for line in lines[1:-2]) == "there is no driver on this machine install one"
