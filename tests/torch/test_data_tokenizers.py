import dataclasses
import re
import sys

import numpy as np
import pytest
import tokenizers
import transformers

from trainer.config import Config, DataConfig, TargetConfig
from trainer.data.documents import BadLine, Turn
from trainer.data.rendering import learn_style, locate, messages_of, within
from trainer.data.tokenizers import HFTokenizer, open_tokenizer, tokenizer_fingerprint
from trainer.errors import ConfigInvalid, DataInvalid

pytestmark = pytest.mark.torch

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = CHATML.replace("m.content", "m.content | trim")
NO_PROMPT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
NO_TURN_END = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
STRICT = (
    "{% if messages[0].role == 'assistant' %}{{ raise_exception('a question comes first') }}{% endif %}"
    + CHATML
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
# As Qwen3's: thoughts of earlier turns are dropped, and the last turn has a place for them in any case.
THINKING = (
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}"
    "{%- set thoughts = m.reasoning_content or '' %}{%- set content = m.content %}"
    "{%- if '</think>' in content %}"
    "{%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and (loop.last or thoughts) %}"
    "{{- '<think>\n' + thoughts + '\n</think>\n\n' }}{%- endif %}{{- content }}"
    "{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LINES = [
    "the quick brown fox jumps over the lazy dog",
    "what is two and two? two and two is four.",
    "user assistant system hello world print return",
    "gr\u00fc\u00df dich \u4f60\u597d \u4e16\u754c \U0001f600",
] * 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A byte-level BPE trained on a few lines, with ChatML's special tokens, saved as a target has it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>", START, END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    path = tmp_path_factory.mktemp("target")
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = CHATML
    wrapped.save_pretrained(path)
    return path


def turns(*pairs):
    return tuple(Turn(role, text) for role, text in pairs)


def encode(directory, template, *contents):
    return HFTokenizer(str(directory), template).encode(contents)


def supervised(directory, encoded):
    """The texts of the supervised stretches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], encoded.supervised, [0]))))
    return [tokenizer.decode(encoded.tokens[begin:end].tolist()) for begin, end in edges.reshape(-1, 2)]


TWO_TURNS = turns(
    ("system", "be brief"), ("user", "what is two and two?"), ("assistant", "four."),
    ("user", "hello"), ("assistant", "hello world"),
)  # fmt: skip


def test_the_answers_and_the_ends_of_their_turns_are_supervised_and_nothing_else(directory):
    (encoded,) = encode(directory, None, TWO_TURNS)
    assert supervised(directory, encoded) == [f"four.{END}", f"hello world{END}"]
    whole = transformers.AutoTokenizer.from_pretrained(directory)
    told = whole.apply_chat_template(messages_of(TWO_TURNS), tokenize=True, return_dict=True)["input_ids"]
    assert encoded.tokens.tolist() == told
    assert encoded.tokens.dtype == np.uint32


def test_every_supervised_token_is_one_that_the_prompt_does_not_hold(directory):
    """The tokens before each answer are those of the prompt for it, and those of the answer follow."""
    (encoded,) = encode(directory, None, TWO_TURNS)
    whole = transformers.AutoTokenizer.from_pretrained(directory)
    expected = np.zeros(len(encoded.tokens), bool)
    for index in (2, 4):
        prompt = whole.apply_chat_template(
            messages_of(TWO_TURNS[:index]), tokenize=True, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        assert encoded.tokens[: len(prompt)].tolist() == prompt
        answer = whole(TWO_TURNS[index].text + END, add_special_tokens=False)["input_ids"]
        assert encoded.tokens[len(prompt) : len(prompt) + len(answer)].tolist() == answer
        expected[len(prompt) : len(prompt) + len(answer)] = True
    assert encoded.supervised.tolist() == expected.tolist()


@pytest.mark.parametrize("template", [CHATML, STRIPPING, THINKING, STRICT])
def test_a_text_that_the_user_says_too_is_not_taken_for_the_answer(directory, template):
    said = turns(
        ("user", "four."), ("assistant", "four."), ("user", "four. four.<|im_end|>"), ("assistant", "four.")
    )
    answers = supervised(directory, encode(directory, template, said)[0])
    assert [answer.removeprefix("<think>\n\n</think>\n\n") for answer in answers] == [f"four.{END}"] * 2


@pytest.mark.parametrize("template", [CHATML, STRIPPING, MARKED])
def test_characters_of_several_tokens_are_wholly_inside(directory, template):
    said = turns(("user", "\U0001f600"), ("assistant", "\u4f60\u597d \U0001f601\u2603 gr\u00fc\u00df"))
    (encoded,) = encode(directory, template, said)
    assert supervised(directory, encoded) == [f"\u4f60\u597d \U0001f601\u2603 gr\u00fc\u00df{END}"]


@pytest.mark.parametrize("template", [CHATML, STRIPPING])
def test_of_an_empty_answer_the_end_of_the_turn_is_learnt(directory, template):
    (encoded,) = encode(directory, template, turns(("user", "hello"), ("assistant", "")))
    assert supervised(directory, encoded) == [END]


def test_blanks_that_the_template_strips_do_not_shift_anything(directory):
    said = turns(("user", "  hello \n"), ("assistant", "\n\n four.  \n"), ("user", "x"), ("assistant", " \n"))
    assert supervised(directory, encode(directory, STRIPPING, said)[0]) == [f"four.{END}", END]
    assert supervised(directory, encode(directory, CHATML, said)[0]) == [f"\n\n four.  \n{END}", f" \n{END}"]


def test_dropped_thoughts_are_not_supervised_and_kept_ones_are(directory):
    said = turns(
        ("user", "a"), ("assistant", "<think>\nthe dog\n</think>\n\nfour."),
        ("user", "b"), ("assistant", "<think>\nthe fox\n</think>\n\nworld"),
    )  # fmt: skip
    kept = f"<think>\nthe fox\n</think>\n\nworld{END}"
    assert supervised(directory, encode(directory, THINKING, said)[0]) == [f"four.{END}", kept]
    apart = (Turn("user", "b"), Turn("assistant", "world", "the fox"))
    assert supervised(directory, encode(directory, THINKING, apart)[0]) == [kept]
    without = turns(("user", "b"), ("assistant", "world"))
    assert supervised(directory, encode(directory, THINKING, without)[0]) == [
        f"<think>\n\n</think>\n\nworld{END}"
    ]


def test_a_template_without_a_prompt_or_an_end_of_turn_is_understood(directory):
    assert supervised(directory, encode(directory, NO_PROMPT, TWO_TURNS)[0]) == [
        " four.</s>",
        " hello world</s>",
    ]
    bare = supervised(directory, encode(directory, NO_TURN_END, TWO_TURNS)[0])
    assert [answer.strip() for answer in bare] == ["four.", "hello world"]


def test_a_template_that_marks_answers_itself_is_believed(directory):
    assert supervised(directory, encode(directory, MARKED, TWO_TURNS)[0]) == [
        f"four.{END}",
        f"hello world{END}",
    ]


def test_an_assistant_that_speaks_first_or_twice_is_found(directory):
    said = turns(
        ("assistant", "hello"), ("assistant", "world"), ("user", "x"), ("tool", "y"), ("assistant", "z")
    )
    assert supervised(directory, encode(directory, CHATML, said)[0]) == [
        f"hello{END}",
        f"world{END}",
        f"z{END}",
    ]


def test_what_the_template_refuses_is_a_bad_line_and_the_others_go_on(directory):
    first, second = encode(directory, STRICT, turns(("assistant", "hello")), TWO_TURNS)
    assert isinstance(first, BadLine)
    assert "the chat template refuses it: a question comes first" in str(first)
    assert supervised(directory, second) == [f"four.{END}", f"hello world{END}"]


ONLY_THREE = CHATML.replace("for m in messages", "for m in messages[:3]")
TWO_ENDS = CHATML.replace("<|im_end|>", "{{ '<|im_end|>' if loop.last else '|' }}")
COUNTED = CHATML.replace("{{ m.content }}", "{{ m.content | length }} {{ m.content }}")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (ONLY_THREE, "turn 4: the template does not show where its text ends"),
        (TWO_ENDS, "turn 2: .* end it with"),
    ],
)
def test_an_answer_that_cannot_be_found_is_a_bad_line_and_not_left_unsupervised(directory, template, problem):
    (answer,) = encode(directory, template, TWO_TURNS)
    assert isinstance(answer, BadLine)
    assert re.search(problem, str(answer))


def test_what_the_template_adds_to_an_answer_is_supervised_with_it(directory):
    (answer,) = encode(directory, COUNTED, TWO_TURNS)
    assert supervised(directory, answer) == [f"5 four.{END}", f"11 hello world{END}"]


def test_a_template_that_rewrites_answers_is_refused(directory):
    shouting = CHATML.replace("{{ m.content }}", "{{ m.content | upper }}")
    with pytest.raises(ConfigInvalid, match="an assistant's text does not come out"):
        encode(directory, shouting, TWO_TURNS)


def test_texts_and_conversations_keep_their_order(directory):
    encoded = encode(directory, None, "hello", TWO_TURNS, "world")
    assert [answer.supervised.all() for answer in encoded] == [True, False, True]
    assert supervised(directory, encoded[2]) == ["world"]


def test_a_template_file_stands_for_the_tokenizers_own_and_counts_in_the_fingerprint(directory, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(NO_PROMPT)
    own = Config(target=TargetConfig(path=str(directory)), data=DataConfig(source="chat"))
    other = dataclasses.replace(own, data=DataConfig(source="chat", chat_template=str(file)))
    assert tokenizer_fingerprint(own) == tokenizer_fingerprint(own) != tokenizer_fingerprint(other)
    (encoded,) = open_tokenizer(other).encode([TWO_TURNS])
    assert supervised(directory, encoded)[0] == " four.</s>"
    missing = dataclasses.replace(own, data=DataConfig(source="chat", chat_template="/nowhere"))
    with pytest.raises(ConfigInvalid, match=r"data\.chat_template: /nowhere"):
        open_tokenizer(missing)


def test_no_template_and_a_broken_one_are_told(directory, tmp_path):
    bare = tmp_path / "bare"
    plain = transformers.AutoTokenizer.from_pretrained(directory)
    plain.chat_template = None
    plain.save_pretrained(bare)
    with pytest.raises(ConfigInvalid, match="the target's tokenizer has none of its own; name a file"):
        encode(bare, None, TWO_TURNS)
    with pytest.raises(ConfigInvalid, match=r"data\.chat_template: line 1"):
        encode(directory, "{% for %}", TWO_TURNS)


def test_a_missing_library_and_an_unreadable_tokenizer_are_told(directory, tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataInvalid, match="its tokenizer cannot be loaded"):
        HFTokenizer(str(tmp_path), None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigInvalid, match=r"needs transformers; pip install 'dflashctl\["):
        HFTokenizer(str(directory), None)


def test_a_token_across_the_border_of_an_answer_is_not_supervised():
    offsets = [(0, 2), (2, 5), (5, 6), (6, 6), (6, 9), (9, 11)]
    spans = [(3, 6), (6, 10)]
    assert within("aa.bbcdddee", offsets, spans).tolist() == [False, False, True, False, True, False]
    assert within("aa\nbbcdddee", offsets, spans).tolist() == [False, False, True, False, True, False]
    assert within("aa bbcdddee", offsets, spans).tolist() == [False, True, True, False, True, False]
    assert not within("aa bbcdddee", offsets, []).any()


def test_spans_are_of_the_rendered_text(directory):
    tokenizer = HFTokenizer(str(directory), None)
    text, spans = locate(tokenizer._render, learn_style(tokenizer._render), messages_of(TWO_TURNS))
    assert [text[begin:end] for begin, end in spans] == [f"four.{END}", f"hello world{END}"]
