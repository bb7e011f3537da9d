"""A chat template applied to a text: the tokenizer's own, run by jinja2 in its sandbox (extra `chat`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from attnx.errors import ModelError, UsageError, lacks_memory
from attnx.installed import pip
from attnx.records import Tokens
from attnx.session.protocol import OpenModel
from attnx.tokens.config import Config
from attnx.tokens.files import read_config, search_folders, token_text
from attnx.wording import Wording

if TYPE_CHECKING:
    from jinja2.ext import Extension

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token")
_LONGEST = 1 << 20
_WITHOUT = Wording("[Leave out <chat>, and write|Write] the whole prompt yourself.")


def find_template(place: Path) -> str | None:
    """The chat template beside a model: chat_template.jinja, chat_template.json, or in tokenizer_config.json.

    Args:
        place: The model's file, or its tokenizer's.

    Raises:
        ModelError: The template cannot be read.
    """
    for folder in search_folders(place):
        if (folder / "chat_template.jinja").is_file():
            return _read(folder / "chat_template.jinja")
    for name in ("chat_template.json", "tokenizer_config.json"):
        config = read_config(place, name)
        found = config.get("chat_template")
        if isinstance(found, list):
            found = _default([Config(t, config.where) for t in found if isinstance(t, dict)], config.where)
        if found is not None and not isinstance(found, str):
            raise config.wrong("chat_template", "a template or a list of named ones")
        if found is not None:
            return found
    return None


def _default(named: Sequence[Config], where: str) -> str | None:
    """Of several templates by name, the one for plain chats; None if there is none at all.

    Raises:
        ModelError: None of them is called "default": they are for other uses (tools, documents).
    """
    found = next((one for one in named if one.get("name") == "default"), None)
    if found is None and named:
        names = ", ".join(repr(str(one.get("name"))) for one in named)
        raise ModelError(f"{where!r} has chat templates, but none called 'default' for plain chats: {names}", _WITHOUT)
    return None if found is None else found.text("template")


def _read(path: Path) -> str:
    """The text of a file.

    Raises:
        ModelError: It is not UTF-8, or larger than any template is.
    """
    content = path.read_bytes()
    if len(content) > _LONGEST:
        raise ModelError(f"{str(path)!r} is larger than any chat template is", "Fetch the file again.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{str(path)!r} is not UTF-8 text: byte 0x{content[error.start]:02x} at byte {error.start}",
            Wording("Convert it: iconv -f latin1 -t utf-8 FILE[; or leave out <chat>]."),
        ) from None


def render(template: str, messages: Sequence[Mapping[str, str]], roles: Mapping[str, str]) -> str:
    """Run a template.

    A template may come from an untrusted model, so it runs in a sandbox without access to Python's internals or files.

    Args:
        template: jinja2 source.
        messages: {"role", "content"} each.
        roles: Role -> text of the special token.

    Raises:
        UsageError: jinja2 is not installed.
        ModelError: The template cannot be read, refuses the messages, or fails.
    """
    try:
        from jinja2 import TemplateError, TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        if lacks_memory(error):
            raise
        raise UsageError("a chat template needs jinja2", f"Install it: {pip('chat')}") from None

    class RefusedError(TemplateError):
        """What the template itself raises."""

    def refuse(message: object) -> NoReturn:
        raise RefusedError(str(message))

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _written_by_the_model()]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        text = environment.from_string(template).render(
            messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **roles
        )
    except RefusedError as error:
        said = next(iter((error.message or "").splitlines()), "")[:200] or "it gives no reason"
        raise ModelError(f"the chat template does not take this text: {said}", _WITHOUT) from None
    except TemplateSyntaxError as error:
        said = f"{str(error.message)[:200]}, in its line {error.lineno}"
        raise ModelError(f"the chat template cannot be read: {said}", _WITHOUT) from None
    except Exception as error:  # whatever an untrusted template does wrong
        if lacks_memory(error):
            raise
        raise ModelError(f"the chat template failed: {type(error).__name__}: {str(error)[:160]}", _WITHOUT) from None
    if len(text) > _LONGEST:
        raise ModelError(f"the chat template made {len(text)} characters of the text", _WITHOUT)
    return text


def _written_by_the_model() -> type[Extension]:
    """The tag of transformers {% generation %}, around what the model itself writes: its content stays as it is."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("kept"), [], [], body).set_lineno(line)

        def kept(self, caller: Callable[[], str]) -> str:
            return caller()

    return Generation


def encode_chat(model: OpenModel, text: str, system: str | None = None) -> Tokens:
    """A text as a user's message of a chat, up to where the assistant begins.

    Args:
        model: Its tokenizer's files hold the template.
        text: What the user says.
        system: What the system says first.

    Raises:
        ModelError: There is no template.
    """
    place = model.tokenizer.path
    template = find_template(place) or find_template(model.path)
    if template is None:
        raise ModelError(
            f"{model.name} comes without a chat template",
            Wording("[Leave out <chat>; not every model is one to chat with.|Not every model is one to chat with.]"),
        )
    config = read_config(place, "tokenizer_config.json")
    roles = {role: told for role in _ROLES if (told := token_text(config.get(role)))}
    messages = [{"role": "system", "content": system}] if system is not None else []
    prompt = render(template, [*messages, {"role": "user", "content": text}], roles)
    tokens: Tokens = model.tokenizer.encode(prompt, add_special=False)
    return tokens
