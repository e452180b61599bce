"""Chat templates: conversations -> prompt text, in the environment that Hugging Face's templates are written for."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from umlm.text.messages import (
    ROLES,
    Chat,
    Habits,
    normalize_documents,
    normalize_messages,
    normalize_tools,
)

_END = "\U0010fff0"  # stands at the end of a message that is to be continued; private use
_PROBE = "umlmprobe"
_QUOTED = re.compile(r"""(?:role|ROLE)['"\]\s)]*(?:==|!=|in)\s*[\[(]?((?:\s*,?\s*(?:'[\w-]+'|"[\w-]+"))+)""")


class _RefusedByTemplate(jinja2.TemplateError):
    """A template called raise_exception."""


class _GenerationTag(Extension):
    """`{% generation %}` .. `{% endgeneration %}` mark the model's own words; rendering is that of their body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The body of the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """One chat template, or several under names. It is compiled on first use."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        variables: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """source: jinja2 text, or name -> text; variables: bos_token and the like; clock: for strftime_now."""
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        if not self.sources:
            raise ValueError("chat template: none given; pass jinja2 text")
        self._variables = dict(variables or {})
        self._clock = clock
        self._compiled: dict[str, jinja2.Template] = {}

    @property
    def source(self) -> str:
        """The text of the template used when no name is given."""
        return self.sources.get("default") or next(iter(self.sources.values()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation.

        tools: JSON schemas or Python functions; add_generation_prompt: open the assistant's turn (None: unless the
        final message is continued); continue_final_message: end right after the last message's text;
        template_name: one of several templates ("tool_use" is taken by itself when tools are given);
        variables: whatever the template reads. Raises ValueError, with the template's own message where it refuses.
        """
        return self.fill(
            self.prepare(messages, tools, documents),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_name=template_name,
            **variables,
        )

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> Chat:
        """The conversation as plain data in the form that this template expects. Raises ValueError."""
        habits = self._habits
        if isinstance(messages, Sequence) and any(map(_has_tool_calls, messages)):
            habits = self._call_habits
        return Chat(normalize_messages(messages, habits), normalize_tools(tools), normalize_documents(documents))

    def fill(
        self,
        chat: Chat,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_name: str | None = None,
        **variables: Any,
    ) -> str:
        """Render a prepared conversation; see render()."""
        if continue_final_message and add_generation_prompt:
            raise ValueError("add_generation_prompt and continue_final_message exclude each other; set one of them")
        if continue_final_message:
            chat = chat._replace(messages=_with_end_mark(chat.messages))
        text = self._run(
            self._name(template_name, bool(chat.tools)),
            messages=chat.messages,
            tools=chat.tools,
            documents=chat.documents,
            add_generation_prompt=not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
            **variables,
        )
        return _up_to_end_mark(text) if continue_final_message else text

    def _name(self, name: str | None, has_tools: bool) -> str:
        if name is None and has_tools and "tool_use" in self.sources:
            return "tool_use"
        if name is None:
            return "default" if "default" in self.sources else next(iter(self.sources))
        if name not in self.sources:
            raise ValueError(f"chat template {name!r} is not there; known: {', '.join(sorted(self.sources))}")
        return name

    def _run(self, name: str, **variables: Any) -> str:
        try:
            if name not in self._compiled:
                self._compiled[name] = self._environment.from_string(self.sources[name])
            return self._compiled[name].render(**{**self._variables, **variables})
        except _RefusedByTemplate as error:
            raise ValueError(str(error)) from None
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template {name!r}: line {error.lineno}: {error.message}") from None
        except Exception as error:  # a template is foreign code; whatever it does wrong is the request's error
            raise ValueError(f"chat template {name!r} failed: {error}") from error

    @cached_property
    def _environment(self) -> ImmutableSandboxedEnvironment:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: self._clock().strftime(format)
        return environment

    @cached_property
    def _habits(self) -> Habits:
        everything = "".join(self.sources.values())
        named = {role for match in _QUOTED.finditer(everything) for role in re.findall(r"[\w-]+", match[1])}
        parts = [{"type": "text", "text": _PROBE}]
        return Habits(
            roles=frozenset(ROLES) | named,
            developer="developer" in named,
            parts=not self._shows([{"role": "user", "content": _PROBE}])
            and self._shows([{"role": "user", "content": parts}]),
        )

    @cached_property
    def _call_habits(self) -> Habits:
        """Habits with the first form of a tool call that the template writes: content empty or none, arguments as an
        object or as text."""
        for content, arguments in (("", {"x": _PROBE}), ("", _PROBE), (None, {"x": _PROBE}), (None, _PROBE)):
            if self._shows(_probe_call(content, arguments)):
                return self._habits._replace(none_content=content is None, argument_text=isinstance(arguments, str))
        return self._habits

    def _shows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether the template writes the probe when given these messages."""
        try:
            return _PROBE in self.fill(Chat(messages))
        except ValueError:
            return False


def _probe_call(content: str | None, arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
    ]


def _has_tool_calls(message: Any) -> bool:
    return bool(message.get("tool_calls")) if isinstance(message, Mapping) else hasattr(message, "tool_calls")


def _with_end_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark and a space after the last one's text; the space tells whether it was trimmed."""
    if not messages or messages[-1]["role"] != "assistant" or not messages[-1]["content"]:
        raise ValueError("continue_final_message: the last message must be an assistant's with text to continue")
    content = messages[-1]["content"]
    if isinstance(content, list):
        content = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END + " "}]
    else:
        content = content + _END + " "
    return [*messages[:-1], {**messages[-1], "content": content}]


def _up_to_end_mark(text: str) -> str:
    position = text.rfind(_END)
    if position < 0:
        raise ValueError("continue_final_message: the chat template leaves the last message out; send it another way")
    before, after = text[:position], text[position + 1 : position + 2]
    return before if after == " " else before.rstrip()


def _raise_exception(message: str) -> None:
    raise _RefusedByTemplate(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja2's HTML escaping."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
