"""Chat templates: equal to transformers (data/make_chat_templates.py), and the field's known breakages."""

import copy
import json
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from umlm.text import ChatTemplate, function_schema

DATA = Path(__file__).parent / "data"
STORED = json.loads((DATA / "chat_templates.json").read_text("utf-8"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"city": "Paris"}}}
USER = {"role": "user", "content": "hi"}


def stored_template(name):
    return ChatTemplate((DATA / "templates" / f"{name}.jinja").read_text("utf-8"), variables=SPECIAL)


def calls(arguments: Any):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize("name", sorted({case["template"] for case in STORED["cases"]}))
def test_rendering_equals_transformers(name):
    template = stored_template(name)
    cases = [case for case in STORED["cases"] if case["template"] == name]
    assert len(cases) >= 40
    for case in cases:
        messages = STORED["conversations"][case["conversation"]]
        if "error" in case:
            with pytest.raises(ValueError) as refused:
                template.render(messages, **case["options"])
            assert str(refused.value) == case["error"]
        else:
            assert template.render(messages, **case["options"]) == case["text"], case


def book(city: str, nights: int, kind: str = "double", price: float | None = None) -> list[str]:
    """Book a room.

    It may take
    a while.

    Args:
        city (str): Where to stay: any city
            of the world
        nights: How long
        kind: Which room (choices: ["single", "double"])
        price: At most this

    Returns:
        The names of the rooms.

    Raises:
        ValueError: never
    """
    raise NotImplementedError


def search(query: str | int, filters: dict[str, list[int]], deep: bool, pair: tuple[int, str]):
    """Search the archive.

    Args:
        query: Words or a number
        filters: Field to values
        deep: Whether to look everywhere
        pair: Two things
    """


def test_function_schema_equals_transformers():
    assert [function_schema(book), function_schema(search)] == STORED["schemas"]


class Size(Enum):
    SMALL = "small"
    LARGE = 2


def test_function_schema_of_enums_and_methods():
    class Shop:
        def buy(self, size: Size, colour: Literal["red", "blue"], more: Any):
            """Buy.

            Args:
                size: How big
                colour: Which
                more: Anything
            """

    parameters = function_schema(Shop.buy)["function"]["parameters"]
    assert parameters["required"] == ["size", "colour", "more"]
    assert parameters["properties"]["size"] == {
        "type": ["string", "integer"],
        "enum": ["small", 2],
        "description": "How big",
    }
    assert parameters["properties"]["colour"]["enum"] == ["red", "blue"]
    assert parameters["properties"]["more"] == {"description": "Anything"}


def test_function_schema_says_what_is_missing():
    def bare(x: int): ...
    def undescribed(x: int):
        """Do."""

    def untyped(x):
        """Do.

        Args:
            x: Thing
        """

    for function, complaint in ((bare, "no docstring"), (undescribed, "no description"), (untyped, "no type hint")):
        with pytest.raises(ValueError, match=complaint):
            function_schema(function)


def test_functions_are_tools():
    template = ChatTemplate("{{ tools[0].function.name }}")
    assert template.render([USER], tools=[search]) == "search"


def test_refusal_carries_the_template_s_own_message():
    """C01: a template without system role."""
    gemma = stored_template("gemma")
    for messages in ([{"role": "system", "content": "s"}, USER], [{"role": "system", "content": "s"}]):
        with pytest.raises(ValueError, match=r"^System role not supported$"):
            gemma.render(messages)


def test_strftime_now_with_any_format_and_a_given_clock():
    """C02."""
    source = '{{ strftime_now("%d %b %Y") }} {{ strftime_now("%Y-%m-%d %H:%M:%S") }}'
    template = ChatTemplate(source, clock=lambda: datetime(2024, 7, 26, 8, 5, 9))
    assert template.render([USER]) == "26 Jul 2024 2024-07-26 08:05:09"
    assert str(datetime.now().year) in ChatTemplate(source).render([USER])


def test_loop_controls():
    """C05."""
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(source).render([USER, {"role": "user", "content": "2"}]) == "hi"


def test_tool_call_arguments_become_objects_on_a_copy():
    """C06: a JSON string is parsed, '' is {}, other text is refused; the caller's messages stay."""
    source = (
        "{% for m in messages %}{% for tc in m.tool_calls or [] %}"
        "{% for k, v in tc.function.arguments|items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source)
    messages = calls('{"city": "Paris"}')
    before = copy.deepcopy(messages)
    assert template.render(messages) == "city=Paris;"
    assert messages == before
    assert template.render(calls("")) == template.render(calls(None)) == ""
    for bad in ("not json", "[1]", 3):
        with pytest.raises(ValueError, match=r"messages\[1\]: tool call 'f': arguments"):
            template.render(calls(bad))


def test_templates_that_write_arguments_as_text_get_text():
    """C06: a template that joins arguments to strings cannot use an object."""
    source = (
        "{% for m in messages %}{% for tc in m.tool_calls or [] %}"
        "{{ 'A' + tc.function.arguments }}{% endfor %}{% endfor %}"
    )
    for arguments in ({"city": "Zürich"}, '{"city": "Zürich"}'):
        assert ChatTemplate(source).render(calls(arguments)) == 'A{"city": "Zürich"}'


@pytest.mark.parametrize("turn", [{"content": None}, {}])
def test_assistant_turn_without_content_is_kept(turn):
    """C07: null or absent content with tool calls; the turn and the tool reply both show."""
    source = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}|{% endfor %}"
    )
    messages = [USER, {"role": "assistant", **turn, "tool_calls": [CALL]}, {"role": "tool", "content": "5"}, USER]
    assert ChatTemplate(source).render(messages) == "user:hi|assistant:f|tool:5|user:hi|"


def test_reasoning_that_may_be_none_says_nothing_about_content():
    """Qwen 3's template asks whether reasoning_content is none and searches content, which must be a string."""
    source = (
        "{% for m in messages %}{% if m.reasoning_content is defined and m.reasoning_content is not none %}R"
        "{% elif '</think>' in m.content %}T{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).render(calls({})) == '{"name": "f", "arguments": {}}'


def test_content_stays_none_where_the_template_asks_for_it():
    """DeepSeek V3's template knows a tool call by its content being none, and joins its arguments to text."""
    source = (
        "{% for m in messages %}{% if m['role'] == 'assistant' and m['content'] is none %}"
        "{% set f = m['tool_calls'][0]['function'] %}CALL {{ f['name'] + f['arguments'] }}{% endif %}{% endfor %}"
    )
    for content in (None, ""):
        messages = [USER, {"role": "assistant", "content": content, "tool_calls": [CALL]}]
        assert ChatTemplate(source).render(messages) == 'CALL f{"city": "Paris"}'


def test_developer_is_system_unless_the_template_knows_it():
    """C08: also beside a system turn; a made-up role is refused."""
    plain = ChatTemplate("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}")
    developer, system = {"role": "developer", "content": "d"}, {"role": "system", "content": "s"}
    assert plain.render([developer, USER]) == "[system:d][user:hi]"
    assert plain.render([system, developer, USER]) == "[system:s\n\nd][user:hi]"
    assert plain.render([system, system, USER]) == "[system:s][system:s][user:hi]"
    native = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'developer' %}DEV{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    assert native.render([system, developer]) == "[system:s]DEV[developer:d]"
    with pytest.raises(ValueError, match="unknown role 'banana'; known: assistant"):
        plain.render([{"role": "banana", "content": "x"}])


def test_roles_that_a_template_names_are_known():
    template = ChatTemplate(
        "{% for m in messages %}{% if m['role'] in ['critic', 'judge'] %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert template.render([{"role": "judge", "content": "x"}]) == "x"


def test_alternation_errors_are_the_template_s():
    """C09: two user turns in a row against a strict template."""
    with pytest.raises(ValueError, match="roles must alternate"):
        stored_template("mistral").render([{"role": "system", "content": "s"}, USER, USER])


def test_continued_message_ends_the_prompt():
    """C11: no end token after the prefix; the other way of beginning an answer excludes it."""
    template = stored_template("chatml")
    messages = [USER, {"role": "assistant", "content": "Hi John,"}]
    text = template.render(messages, continue_final_message=True, add_generation_prompt=False)
    assert text.endswith("<|im_start|>assistant\nHi John,")
    assert template.render(messages, continue_final_message=True) == text
    with pytest.raises(ValueError, match="exclude each other"):
        template.render(messages, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(ValueError, match="last message must be an assistant"):
        template.render([USER], continue_final_message=True)
    with pytest.raises(ValueError, match="leaves the last message out"):
        ChatTemplate("{{ messages[0].content }}").render(messages, continue_final_message=True)


def test_content_parts_are_joined_in_order():
    """C12: user and tool content as lists, an empty list, unknown and image parts."""
    template = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}")
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    messages = [{"role": "user", "content": parts}, {"role": "tool", "content": parts}, {"role": "user", "content": []}]
    assert template.render(messages) == "user:AB|tool:AB|user:|"
    for part in ({"type": "image_url", "image_url": {"url": "x"}}, {"type": "image"}, {"type": "banana"}, {}, 3):
        with pytest.raises(ValueError, match=r"messages\[0\]: content part of type .* is not supported"):
            template.render([{"role": "user", "content": [part]}])


def test_templates_that_read_parts_only_get_parts():
    """C12: such a template would write nothing for a string."""
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}|{% endfor %}"
    assert ChatTemplate(source).render([USER, {"role": "user", "content": [{"type": "text", "text": "B"}]}]) == "hi|B|"


def test_named_templates():
    template = ChatTemplate({"default": "D", "tool_use": "T{{ tools|length }}", "rag": "R"})
    assert template.render([USER]) == "D"
    assert template.render([USER], tools=[{"name": "f"}]) == "T1"
    assert template.render([USER], template_name="rag") == "R"
    with pytest.raises(ValueError, match="'nope' is not there; known: default, rag, tool_use"):
        template.render([USER], template_name="nope")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% if %}", "line 1"),
        ("{{ messages[0].x.y }}", "failed"),
        ("{{ 1 / 0 }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),  # the sandbox: data cannot be changed
        ("{{ ''.__class__.__mro__ }}", "failed"),  # nor Python's insides be reached
        ("{{ messages[0].__class__.__init__.__globals__ }}", "failed"),
        ("{{ 'x' * 2 }}{{ range(10**9) }}", "failed"),
    ],
)
def test_bad_templates_end_in_one_line(source, complaint):
    with pytest.raises(ValueError, match=complaint):
        ChatTemplate(source).render([USER])


@pytest.mark.parametrize(
    "messages", [None, "hi", {"role": "user"}, [1], [{"content": "x"}], [{"role": "user", "content": 5}]]
)
def test_bad_messages_are_named(messages):
    with pytest.raises(ValueError, match="messages"):
        ChatTemplate("x").render(messages)


def test_objects_like_the_openai_client_s_are_read():
    class Message:
        def model_dump(self):
            return {"role": "assistant", "content": "yes", "refusal": None}

    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.refusal is defined }}{% endfor %}")
    assert template.render([Message()]) == "yesFalse"
