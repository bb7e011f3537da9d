"""Chat templates, run in a sandbox."""

import json
from pathlib import Path

import pytest

import attnx
from attnx.errors import ModelError
from attnx.feed.chat import encode_chat, find_template, render
from tests import small_models as small

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}S {{ m['content'] | trim }}\n"
    "{% else %}U {{ m['content'] }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A {% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def test_what_a_template_makes() -> None:
    got = render(TEMPLATE, [{"role": "system", "content": " be kind "}, *USER], {"bos_token": "<s>"})
    assert got == "<s>S be kind\nU hi\nA "


def test_control_flow_and_filters_that_templates_use() -> None:
    source = "{% for m in messages %}{% if loop.first %}{{ m | tojson }}{% break %}{% endif %}{% endfor %}"
    assert render(source, [{"role": "user", "content": "é<"}], {}) == '{"role": "user", "content": "é<"}'


@pytest.mark.parametrize(
    ("template", "made"),
    [
        # What transformers 5 makes of them.
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}.", "hi."),
        ("{% generation %}\n  {% if true %}\na{% endif %}\n{% endgeneration %}\nb", "ab"),
        ("{{ {'b': 1, 'a': 'é'} | tojson(separators=(',', ':')) }}", '{"b":1,"a":"é"}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(true) }}", '{"b": 1, "a": "\\u00e9"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, indent=1) }}", '{\n "a": 2,\n "b": 1\n}'),
    ],
)
def test_what_transformers_adds_to_templates(template: str, made: str) -> None:
    assert render(template, USER, {}) == made


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no system role') }}", "does not take this text: no system role"),
        ("{{ raise_exception(5) }}", "does not take this text: 5"),
        ("{{ raise_exception(messages) }}", "does not take this text: .*'content': 'hi'"),
        ("{{ raise_exception(nothing) }}", "does not take this text: it gives no reason"),
        ("{{ raise_exception('\\n') }}", "does not take this text: it gives no reason"),
        ("{{ x }}\n{% for %}", "cannot be read: .*, in its line 2"),
        ("{% generation %}a", "cannot be read: "),
        ("{% segment %}a{% endsegment %}", "cannot be read: Encountered unknown tag 'segment'"),
        ("{{ messages | fold }}", "cannot be read: No filter named 'fold'"),
        ("{{ nothing.at.all }}", "failed: UndefinedError"),
        ("{{ messages.__class__.__mro__ }}", "failed: SecurityError"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "failed: SecurityError"),
        ("{{ messages.append(1) }}", "failed: SecurityError"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{% for i in range(10000000) %}x{% endfor %}", "failed: OverflowError"),
        ("{% set x = 'a' * 2000000 %}{{ x }}", "made 2000000 characters"),
    ],
)
def test_a_bad_template_is_a_message(template: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        render(template, USER, {})


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert find_template(tmp_path / "model.onnx") is None
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert find_template(tmp_path / "model.onnx") == "D"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several[:1]}))
    with pytest.raises(ModelError, match=r"none called 'default' for plain chats: 'tool_use'"):
        find_template(tmp_path / "model.onnx")
    (tmp_path / "chat_template.jinja").write_text("J")
    assert find_template(tmp_path / "model.onnx") == "J"
    (tmp_path / "onnx").mkdir()
    assert find_template(tmp_path / "onnx" / "model.onnx") == "J"


def test_a_chat_becomes_tokens_without_a_second_start(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    entries = {word: i for i, word in enumerate(["<s>", "</s>", "U", "A", "hi", "there", "<unk>"])}
    raw = Tokenizer(models.WordLevel(entries, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens(["<s>", "</s>"])
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    small.save(tmp_path, model=small.plain_decoder(small.weights()))
    raw.save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    model = attnx.open(tmp_path, device="cpu")
    tokens = encode_chat(model, "hi there")
    assert tokens.ids.tolist() == [0, 2, 4, 5, 3]
    assert tokens.special == (True, False, False, False, False)
    assert model.trace(tokens=tokens, generate=2).generated == 2
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="without a chat template"):
        encode_chat(attnx.open(tmp_path, device="cpu"), "hi")
