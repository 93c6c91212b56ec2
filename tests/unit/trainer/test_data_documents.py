import json

import pytest

from trainer.data import documents
from trainer.data.documents import BadLine, Turn, parse_chat, parse_text, read_documents, source_files
from trainer.errors import ConfigInvalid, DataInvalid

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "ho"}


def line(value):
    return json.dumps(value).encode()


def read(root, kind="chat", limit=1 << 20):
    return list(read_documents(*source_files(str(root), kind), kind, limit))


def test_both_formats_give_the_same_turns():
    turns = (Turn("system", "s"), Turn("user", "hi"), Turn("assistant", "ho"))
    pairs = [("system", "s"), ("human", "hi"), ("gpt", "ho")]
    assert parse_chat(line({"conversations": [{"from": f, "value": v} for f, v in pairs]})) == turns
    assert parse_chat(line({"messages": [{"role": "system", "content": "s"}, USER, ASSISTANT]})) == turns
    assert parse_chat(line({"system": "s", "messages": [USER, ASSISTANT]})) == turns


def test_parts_of_text_are_joined_and_reasoning_is_kept_apart():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "assistant", "content": "c", "reasoning_content": "why"}
    told = parse_chat(line({"messages": [{"role": "user", "content": parts}, answer]}))
    assert told == (Turn("user", "ab"), Turn("assistant", "c", "why"))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "not JSON: Expecting property name"),
        (b'{"messages": "\xff"}', "not UTF-8: invalid start byte at byte 14"),
        (b"[" * 100_000, "not JSON that can be read"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON that can be read"),
        (line([1]), r"a list, not an object; jq -c"),
        (line(3), "a number, not an object"),
        (line({"id": 1, "prompt": "x"}), "neither conversations nor messages, but id, prompt"),
        (line({}), "neither conversations nor messages, but nothing"),
        (line({"messages": {}}), "messages is an object, not a list"),
        (line({"messages": []}), "no assistant among 0 turns"),
        (line({"messages": [USER]}), "no assistant among 1 turns"),
        (line({"messages": ["x"]}), r"messages\[0\] is a string, not an object"),
        (line({"messages": [{"role": "alien", "content": "x"}]}), r"messages\[0\]: role 'alien' is none of"),
        (line({"messages": [{"role": ["user"], "content": "x"}]}), "role .* is none of"),
        (line({"messages": [{"content": "x"}]}), "role None is none of"),
        (
            line({"messages": [USER, {"role": "assistant", "content": None}]}),
            r"\[1\]: its text is absent, not",
        ),
        (
            line({"messages": [USER, {"role": "assistant", "content": 3}]}),
            "its text is a number, not a string",
        ),
        (line({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "not of type text"),
        (line({"messages": [{**ASSISTANT, "tool_calls": [{}]}]}), "tool_calls are not supported"),
        (line({"messages": [USER, ASSISTANT], "tools": [{}]}), "tools are not supported"),
        (line({"messages": [USER, ASSISTANT], "system": 3}), "system is a number"),
        (
            line({"messages": [{"role": "user", "content": "\ud83d"}]}),
            "half of a surrogate pair at character 0",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_told_why(data, problem):
    with pytest.raises(BadLine, match=problem):
        parse_chat(data)


@pytest.mark.parametrize("value", [{}, {"text": ""}, {"text": " \n"}, {"text": None}, {"text": ["a"]}])
def test_a_text_that_is_none_is_a_bad_line(value):
    with pytest.raises(BadLine, match=r"^text is"):
        parse_text(line(value))


def test_empty_tools_and_an_empty_answer_are_fine():
    assert parse_chat(line({"messages": [USER, {"role": "assistant", "content": ""}], "tools": []}))


def test_each_line_is_told_with_its_file_and_number(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + line({"messages": [USER, ASSISTANT]}) + b"\n{\n")
    (tmp_path / "b" / "c.jsonl").write_bytes(b"\n" + line({"messages": [USER, ASSISTANT]}))
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / ".hidden.jsonl").write_text("not read")
    found = read(tmp_path)
    assert [one.where for one in found] == ["a.jsonl:1", "a.jsonl:2", "b/c.jsonl:1", "b/c.jsonl:2"]
    assert [one.content is None for one in found] == [False, True, True, False]
    assert found[2].problem == "empty"


def test_an_overlong_line_is_bad_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 100)
    good = line({"text": "x"})
    exact = line({"text": "y" * (99 - len(line({"text": ""})))})
    assert len(exact) == 99
    (tmp_path / "a.jsonl").write_bytes(b"z" * 350 + b"\n" + exact + b"\n" + good + b"\n" + b"z" * 200)
    found = read(tmp_path, "text")
    assert [(one.where, one.content is None) for one in found] == [
        ("a.jsonl:1", True),
        ("a.jsonl:2", False),
        ("a.jsonl:3", False),
        ("a.jsonl:4", True),
    ]
    assert found[0].problem == "longer than 100 bytes"


def test_plain_files_are_a_document_each_and_lines_of_json_one_a_line(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffone\ntwo\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_bytes(line({"text": "three"}) + b"\n")
    (tmp_path / "c.md").write_bytes(b"\xff")
    (tmp_path / "d.txt").write_bytes(b"\n")
    found = {one.where: one.content or one.problem for one in read(tmp_path, "text")}
    assert found.pop("c.md").startswith("not UTF-8: invalid start byte at byte 0")
    assert found == {"a.txt": "one\ntwo\n", "b.jsonl:1": "three", "d.txt": "empty"}


@pytest.mark.parametrize("limit", [4, 5, 6, 7])
def test_of_a_large_plain_file_only_the_beginning_is_read_whole_characters_of_it(tmp_path, limit):
    (tmp_path / "a.txt").write_text("ab\u4f60\u597d", encoding="utf-8")
    assert read(tmp_path, "text", limit)[0].content == ("ab\u4f60" if limit >= 5 else "ab")


def test_a_plain_file_that_ends_within_a_character_is_bad(tmp_path):
    (tmp_path / "a.txt").write_bytes("ab\u4f60".encode()[:-1])
    assert "not UTF-8" in read(tmp_path, "text")[0].problem


def test_a_single_file_may_have_any_name(tmp_path):
    (tmp_path / "train.data").write_bytes(line({"messages": [USER, ASSISTANT]}))
    assert [one.where for one in read(tmp_path / "train.data")] == ["train.data:1"]


def test_no_path_and_no_files_are_told_apart(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"data\.path: empty; data\.source = chat needs"):
        source_files("", "chat")
    with pytest.raises(DataInvalid, match=r"data\.path: .*: no \.jsonl files there"):
        source_files(str(tmp_path), "chat")
    with pytest.raises(DataInvalid, match=r"data\.held_out_path: .*absent: no such file or folder"):
        source_files(str(tmp_path / "absent"), "text", "data.held_out_path")
