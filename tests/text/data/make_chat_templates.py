"""Make chat_templates.json: what transformers renders for each template and conversation.

Run by hand with transformers installed (extra `parity`): python tests/text/data/make_chat_templates.py
"""

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

HERE = Path(__file__).parent

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now> & later in 東京",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {
    "id": "abc123xyz",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich <b>", "days": 2}},
}
SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "  What's 2 < 3 & 'why'? 東京 \n"}
ANSWER = {"role": "assistant", "content": "Because "}
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "three": [USER, ANSWER, {"role": "user", "content": "And?"}],
    "full": [SYSTEM, USER, ANSWER, {"role": "user", "content": ""}],
    "answered": [USER, ANSWER],
    "thought": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, USER],
    "reasoned": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}],
    "tool": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sun": true}', "tool_call_id": "abc123xyz"},
    ],
    "two_tools": [
        USER,
        {"role": "assistant", "content": "Look", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "abc123xyz"},
        {"role": "tool", "content": "2", "tool_call_id": "abc123xyz"},
    ],
    "two_users": [USER, USER],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [WEATHER]},
    {"add_generation_prompt": True, "enable_thinking": False, "style": "fancy"},
    {"add_generation_prompt": True, "documents": [{"title": "T", "text": "x <y>"}]},
    {"continue_final_message": True},
]


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


def search(query: str | int, filters: dict[str, list[int]], deep: bool, pair: tuple[int, str]):
    """Search the archive.

    Args:
        query: Words or a number
        filters: Field to values
        deep: Whether to look everywhere
        pair: Two things
    """


def outcome(tokenizer: PreTrainedTokenizerFast, messages: list, options: dict) -> dict:
    """{"text": ...}, or {"error": ...} where the template refuses."""
    try:
        return {"text": tokenizer.apply_chat_template(messages, tokenize=False, **options)}
    except Exception as error:
        return {"error": str(error)}


def main() -> None:
    """Write the file."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE()), bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    cases = []
    for path in sorted(HERE.glob("templates/*.jinja")):
        tokenizer.chat_template = path.read_text("utf-8")
        for name, messages in CONVERSATIONS.items():
            for options in OPTIONS:
                if options.get("continue_final_message") and messages[-1]["role"] != "assistant":
                    continue
                found = outcome(tokenizer, messages, options)
                cases.append({"template": path.stem, "conversation": name, "options": options, **found})
    schemas = [get_json_schema(book), get_json_schema(search)]
    data = {"conversations": CONVERSATIONS, "cases": cases, "schemas": schemas}
    (HERE / "chat_templates.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
