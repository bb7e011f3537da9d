"""Pulling from a server that speaks the Hub's API, and finding in the cache what was pulled."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import attnx
from attnx.catalog.hub import Name, parse_name, pull
from attnx.catalog.locate import locate
from attnx.cli.wording import worded
from attnx.errors import AttnxError, ModelError, RunError, UsageError
from attnx.study.shelf import list_models
from tests.hub_server import COMMIT, Repo, serving

NAME = "tiny/attention"
BLOCK = 10 << 20
"""Bytes that the Hub's client writes at once: less than that is lost when the line drops."""


def graph(external: str | None = None) -> tuple[bytes, bytes]:
    """One attention over embedded ids, and its weights where these are a file of their own."""
    rng = np.random.default_rng(3)
    table = rng.standard_normal((20, 16)).astype(np.float32)
    tensor = numpy_helper.from_array(table, "table")
    weights = b""
    if external is not None:
        weights = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": external, "offset": "0", "length": str(len(weights))}.items():
            tensor.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="embed"),
        helper.make_node("Transpose", ["x"], ["xt"], perm=[0, 2, 1], name="turn"),
        helper.make_node("MatMul", ["x", "xt"], ["scores"], name="qk"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], name="scale_it"),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1, name="soft"),
        helper.make_node("MatMul", ["weights", "x"], ["y"], name="pv"),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", 16])],
        [tensor, numpy_helper.from_array(np.float32(0.25), "scale")],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), weights


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Repo], Path]]:
    """Serve one repository; gives the folder of the cache."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    with ExitStack() as stack:

        def start(repo: Repo, name: str = NAME) -> Path:
            monkeypatch.setenv("HF_ENDPOINT", stack.enter_context(serving({name: repo})))
            return cache

        yield start


def usual() -> Repo:
    model, weights = graph("model.onnx_data")
    files = {
        "onnx/model.onnx": model,
        "onnx/model.onnx_data": weights,
        "config.json": b'{"model_type": "tiny"}',
        "README.md": b"# not needed",
        "pytorch_model.bin": b"x" * 1000,
        "onnx/model_fp16.onnx": model,
    }
    return Repo(files, large=frozenset({"onnx/model.onnx", "onnx/model.onnx_data", "pytorch_model.bin"}))


def test_names() -> None:
    assert parse_name("org/name") == Name("org/name")
    assert parse_name("org/na.me@v1:onnx/model_q4.onnx") == Name("org/na.me", "v1", "onnx/model_q4.onnx")
    assert str(Name("org/name", "v1", "a.onnx")) == "org/name@v1:a.onnx"
    for text in ("name", "a/b/c", "../b", "org/na--me", "org/", "/abs/path.onnx", "C:\\x.onnx"):
        assert parse_name(text) is None


def test_only_what_is_needed_comes(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    cache = serve(repo)
    got = pull(Name(NAME))
    assert set(got.files) == {"onnx/model.onnx", "onnx/model.onnx_data", "config.json"}
    assert got.files["onnx/model.onnx_data"] == 20 * 16 * 4
    assert got.revision == COMMIT
    assert got.folder == cache / "models--tiny--attention" / "snapshots" / COMMIT
    assert not [path for _, path, _ in repo.asked if "README" in path or "pytorch" in path]


def test_a_pulled_model_runs_through_the_caches_links(serve: Callable[[Repo], Path]) -> None:
    cache = serve(usual())
    pull(Name(NAME))
    place = locate(NAME)
    assert place.path.is_symlink()
    assert (place.path.parent / "model.onnx_data").resolve().parent == cache / "models--tiny--attention" / "blobs"
    ids = np.array([[1, 5, 9]])
    trace = attnx.open(NAME, device="cpu").trace(inputs={"input_ids": ids})
    x = np.random.default_rng(3).standard_normal((20, 16)).astype(np.float32)[ids[0]].astype(np.float64)
    scores = np.exp(x @ x.T / 4)
    np.testing.assert_allclose(
        trace.attentions[0].need("weights")[0, 0], scores / scores.sum(1, keepdims=True), atol=1e-5
    )


def test_a_second_pull_fetches_nothing(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    serve(repo)
    pull(Name(NAME))
    repo.asked.clear()
    pull(Name(NAME))
    assert [path for method, path, _ in repo.asked if method == "GET" and "/resolve/" in path] == []


def test_a_cut_download_goes_on_where_it_stopped(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    repo.files["onnx/model.onnx_data"] += bytes(14_000_000)
    repo.cut["onnx/model.onnx_data"] = [12_000_000]
    cache = serve(repo)
    pull(Name(NAME))
    ranges = [asked for method, path, asked in repo.asked if method == "GET" and path.endswith("model.onnx_data")]
    assert len(ranges) == 2
    assert ranges[0] is None
    assert ranges[1] is not None
    assert int(ranges[1].removeprefix("bytes=").removesuffix("-")) == BLOCK
    whole = next(cache.rglob("model.onnx_data")).read_bytes()
    assert hashlib.sha256(whole).digest() == hashlib.sha256(repo.files["onnx/model.onnx_data"]).digest()


def test_a_pull_after_a_failed_one_fetches_only_what_is_not_whole(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    repo.cut["onnx/model.onnx_data"] = [500, *[0] * 30]
    cache = serve(repo)
    with pytest.raises(RunError, match=r"onnx/model\.onnx_data\) could not be fetched"):
        pull(Name(NAME))
    assert not list(cache.rglob("model.onnx_data"))
    assert not list(cache.rglob("*.incomplete"))
    with pytest.raises(ModelError, match="no such model in the Hub's cache"):
        locate(NAME)
    repo.cut.clear()
    repo.asked.clear()
    pull(Name(NAME))
    gets = [path for method, path, _ in repo.asked if method == "GET" and "/resolve/" in path]
    assert [path.rpartition("/")[2] for path in gets] == ["model.onnx_data"]


def test_a_wrong_hash_is_refused_and_removed(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    repo.damaged = frozenset({"onnx/model.onnx_data"})
    cache = serve(repo)
    with pytest.raises(ModelError, match="arrived damaged"):
        pull(Name(NAME))
    assert not list(cache.rglob("model.onnx_data"))
    repo.damaged = frozenset()
    pull(Name(NAME))
    assert next(cache.rglob("model.onnx_data")).read_bytes() == repo.files["onnx/model.onnx_data"]


def test_small_files_are_held_to_gits_hash(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    repo.damaged = frozenset({"config.json"})
    serve(repo)
    with pytest.raises(ModelError, match=r"config\.json arrived damaged"):
        pull(Name(NAME))


def lose_weights(repo: Repo) -> None:
    del repo.files["onnx/model.onnx_data"]


def lose_graphs(repo: Repo) -> None:
    for name in [f for f in repo.files if f.endswith(".onnx")]:
        del repo.files[name]


def answer_404(repo: Repo) -> None:
    repo.absent = frozenset({"onnx/model.onnx"})


def lock(repo: Repo) -> None:
    repo.gated = True


def hide(repo: Repo) -> None:
    repo.token = "secret"


def rename(repo: Repo) -> None:
    repo.files["onnx/model_q4.onnx"] = repo.files.pop("onnx/model.onnx")


FAULTS: list[tuple[Callable[[Repo], None], type[AttnxError], str]] = [
    (lose_weights, ModelError, "no such file"),
    (lose_graphs, ModelError, r"no \.onnx file"),
    (answer_404, ModelError, "does not have it"),
    (lock, ModelError, "gated"),
    (hide, ModelError, "no model tiny/attention, or it is private"),
    (rename, UsageError, "several models"),
]


@pytest.mark.parametrize(("spoil", "error", "said"), FAULTS, ids=lambda v: getattr(v, "__name__", None))
def test_what_is_wrong_is_said(
    spoil: Callable[[Repo], None], error: type[AttnxError], said: str, serve: Callable[[Repo], Path]
) -> None:
    repo = usual()
    spoil(repo)
    serve(repo)
    with pytest.raises(error, match=said) as caught:
        pull(Name(NAME))
    assert type(caught.value) is error
    assert caught.value.hint


def test_unknown_names_files_and_revisions(serve: Callable[[Repo], Path]) -> None:
    serve(usual())
    with pytest.raises(ModelError, match="no model tiny/other"):
        pull(Name("tiny/other"))
    with pytest.raises(ModelError, match="no revision v9"):
        pull(Name(NAME, "v9"))
    with pytest.raises(UsageError, match=r"no file onnx/model_fp15\.onnx") as caught:
        pull(Name(NAME, file="onnx/model_fp15.onnx"))
    assert "onnx/model_fp16.onnx" in caught.value.hint


def test_a_token_opens_a_private_model(serve: Callable[[Repo], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    repo = usual()
    repo.token = "hf_made_up"
    serve(repo)
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    assert pull(Name(NAME)).files


def test_no_network(serve: Callable[[Repo], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    serve(usual())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match="could not be fetched") as caught:
        pull(Name(NAME))
    assert "HF_ENDPOINT" in caught.value.hint


def test_a_decoder_brings_its_encoder_of_the_same_kind(serve: Callable[[Repo], Path]) -> None:
    model, _ = graph()
    names = [
        f"onnx/{stem}{variant}.onnx"
        for stem in ("encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged")
        for variant in ("", "_q4")
    ]
    serve(Repo(dict.fromkeys(names, model)))
    assert set(pull(Name(NAME)).files) == {"onnx/decoder_model_merged.onnx", "onnx/encoder_model.onnx"}
    got = pull(Name(NAME, file="onnx/decoder_model_q4.onnx"))
    assert set(got.files) == {
        f"onnx/{n}_q4.onnx" for n in ("decoder_model", "encoder_model", "decoder_with_past_model")
    }
    place = locate(f"{NAME}:onnx/decoder_model_q4.onnx")
    assert place.encoder is not None
    assert place.encoder.name == "encoder_model_q4.onnx"


def test_the_cache_is_named_where_a_model_is_missing(serve: Callable[[Repo], Path]) -> None:
    serve(usual())
    with pytest.raises(ModelError) as caught:
        locate(NAME)
    assert caught.value.message.startswith(f"there is no file or folder {NAME}")  # it may be meant as a path
    first = "Check the path. If it is a name on the Hub"
    assert worded(caught.value.hint) == f"{first}: `attnx pull {NAME}`."
    assert caught.value.hint == f"{first}: `attnx.catalog.hub.pull(Name({NAME!r}))`."
    pull(Name(NAME))
    with pytest.raises(ModelError) as caught:
        locate(f"{NAME}:onnx/model_fp16.onnx")
    assert worded(caught.value.hint) == f"Pull it: `attnx pull {NAME} --file onnx/model_fp16.onnx`."


def test_models_lists_what_was_pulled(serve: Callable[[Repo], Path]) -> None:
    repo = usual()
    serve(repo)
    pull(Name(NAME))
    found = {m.name: m for m in list_models()}
    mine = found[NAME]
    assert (mine.source, mine.layers, mine.heads, mine.precision, mine.revision) == ("Hub", (1,), 1, "fp32", COMMIT)
    assert mine.size == len(repo.files["onnx/model.onnx"]) + len(repo.files["onnx/model.onnx_data"])
    assert found["minilm"].source == "bundled"
    assert (found["minilm"].layers, found["minilm"].heads, found["minilm"].kind) == ((6,), 12, "encoder")
    pull(Name(NAME, file="onnx/model_fp16.onnx"))
    assert f"{NAME}:onnx/model_fp16.onnx" in {m.name for m in list_models()}


def test_the_command_and_offline(serve: Callable[[Repo], Path], tmp_path: Path) -> None:
    cache = serve(usual())

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HF_HUB_CACHE": str(cache), "COLUMNS": "80", **more}
        return subprocess.run(
            [sys.executable, "-m", "attnx", *args], env=env, capture_output=True, text=True, check=False
        )

    done = run("pull", NAME, HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout) == (5, "")
    assert "HF_HUB_OFFLINE is set" in done.stderr
    done = run("pull", NAME, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["model"] == NAME
    assert {f["name"] for f in document["files"]} == {"onnx/model.onnx", "onnx/model.onnx_data", "config.json"}
    assert "fetching onnx/model.onnx" in done.stderr
    feed = tmp_path / "feed.npz"
    np.savez(feed, input_ids=np.array([[1, 2, 3]]))
    done = run("trace", NAME, "--inputs", str(feed), "--json", HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"][0]["heads"] == 1
    assert run("pull", "non/sense/at/all").returncode == 2
    assert run("pull", "nonsense").returncode == 3  # the Hub has some names without an organisation


def test_models_command_speaks_its_schema(
    serve: Callable[[Repo], Path], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    import jsonschema

    from attnx.cli import app as cli
    from attnx.view.json import schema

    serve(usual())
    assert cli.run(["models", "--json"]) == 0
    document = json.loads(capsysbinary.readouterr().out)
    jsonschema.validate(document, schema("attnx/models"))
    assert [m["name"] for m in document["models"] if m["source"] == "Hub"] == []


def test_the_graph_of_these_tests_is_sound() -> None:
    onnx.checker.check_model(onnx.load_from_string(graph()[0]))


def test_a_model_that_listens_comes_with_all_that_it_needs(serve: Callable[[Repo], Path]) -> None:
    """Encoder, decoder, tokenizer, preprocessing, configurations: by its name it writes what the folder writes."""
    folder = Path(__file__).parent / "families" / "whisper-short"
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    beside = ("about.json", "truth.npz", "tones.wav")
    serve(Repo({p.name: p.read_bytes() for p in folder.iterdir() if p.name not in beside}))
    pull(Name(NAME))
    trace = attnx.open(NAME, device="cpu").trace(audio=folder / "tones.wav", generate=about["given"]["generate"])
    assert trace.tokens.ids.tolist() == about["ids"]
    (shelved,) = (m for m in list_models() if m.name == NAME)
    assert (shelved.kind, shelved.layers) == ("encoder-decoder", (1, 2))


def test_a_name_without_an_organisation_is_pulled_found_and_listed(serve: Callable[..., Path]) -> None:
    assert parse_name("bert-base-uncased") is None
    assert parse_name("bert-base-uncased", alone=True) == Name("bert-base-uncased")
    with pytest.raises(ModelError, match="there is no model 'attention'"):
        locate("attention")
    serve(usual(), "attention")
    assert pull(Name("attention")).name == "attention"
    assert locate("attention").path.name == "model.onnx"
    assert [one.name for one in list_models() if one.source == "Hub"] == ["attention"]
