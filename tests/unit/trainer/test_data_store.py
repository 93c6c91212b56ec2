import dataclasses
import json
import multiprocessing
import socket
import threading
import tracemalloc

import numpy as np
import pytest

from tests.chats import chat_lines, write_chats
from trainer.config import Config, DataConfig, TargetConfig
from trainer.data import prepare as preparing
from trainer.data.prepare import fingerprint_of, prepare
from trainer.data.store import HELD_OUT, TRAIN, open_store
from trainer.data.tokenizers import ByteTokenizer, open_tokenizer
from trainer.errors import ConfigInvalid, DataInvalid

VOCAB = 260


def config(path, **changes):
    data = DataConfig(source="chat", path=str(path), context_tokens=512)
    return Config(seed=1, data=dataclasses.replace(data, **changes))


def build(configured, directory, **options):
    told: list[str] = []
    words = {"lead": True, "beat": lambda: None, "tell": told.append, **options}
    return prepare(configured, VOCAB, directory, **words), told


def texts(part):
    return [bytes(part.read(index)[0].astype(np.uint8)) for index in range(len(part))]


def chat(answer, question="q"):
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": turns}) + "\n"


def write_lines(path, lines):
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def chats(tmp_path):
    return write_chats(tmp_path / "chats.jsonl", 400)


def test_every_document_is_in_one_part_as_it_was_written(chats, tmp_path):
    store, _ = build(config(chats, context_tokens=1 << 16), tmp_path / "out")
    train, held_out = texts(store.part(TRAIN)), texts(store.part(HELD_OUT))
    assert (len(train) + len(held_out), store.counts["read"]) == (400, 400)
    assert 0 < len(held_out) < 20
    assert not set(train) & set(held_out)
    first = next(iter(chat_lines(1)))["messages"]
    rendered = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in first)
    assert rendered.encode() in train + held_out


def test_of_a_conversation_the_answers_and_the_ends_of_their_turns_are_supervised(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        [chat(f"{index}gr\u00fc\u00df dich", "gr\u00fc\u00df dich") for index in range(300)],
    )
    store, _ = build(config(path), tmp_path / "out")
    tokens, supervised = store.part(TRAIN).read(0)
    assert bytes(tokens[supervised].astype(np.uint8)).decode().endswith("gr\u00fc\u00df dich<|im_end|>")
    assert bytes(tokens[~supervised].astype(np.uint8)).decode() == (
        "<|im_start|>user\ngr\u00fc\u00df dich<|im_end|>\n<|im_start|>assistant\n\n"
    )


def test_the_same_text_is_never_in_both_parts_however_often_it_comes(tmp_path):
    lines = [chat(f"answer {index % 100}") for index in range(1000)]
    store, _ = build(config(write_lines(tmp_path / "a.jsonl", lines)), tmp_path / "out")
    train, held_out = texts(store.part(TRAIN)), texts(store.part(HELD_OUT))
    assert len(train) + len(held_out) == 1000
    assert held_out
    assert not set(train) & set(held_out)


def test_held_out_documents_of_their_own_are_left_out_of_training(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [chat(f"answer {index}") for index in range(100)])
    own = write_lines(tmp_path / "held.jsonl", [chat("answer 7"), chat("another")])
    store, _ = build(config(path, held_out_path=str(own)), tmp_path / "out")
    assert (len(store.part(TRAIN)), len(store.part(HELD_OUT))) == (99, 2)
    assert store.counts["also_held_out"] == 1


def test_a_long_document_is_cut_and_one_without_two_supervised_tokens_is_left_out(tmp_path):
    lines = [chat("x" * 600), chat("y", "q" * 600)] + [chat(f"{index}") for index in range(300)]
    store, _ = build(
        config(write_lines(tmp_path / "a.jsonl", lines), max_document_tokens=128), tmp_path / "out"
    )
    assert (store.counts["cut"], store.counts["unsupervised"], store.counts["bad"]) == (2, 1, 0)
    assert max(part.lengths.max() for part in map(store.part, (TRAIN, HELD_OUT))) == 128


def test_bad_lines_are_told_counted_and_skipped(tmp_path):
    lines = [chat(f"answer {index}") for index in range(300)]
    lines[4:4] = ["{\n", "\n"]
    path = write_lines(tmp_path / "a.jsonl", lines)
    store, told = build(config(path, max_bad_lines=2), tmp_path / "out")
    assert told[0].startswith("bad line a.jsonl:5: not JSON: Expecting property name")
    assert told[1] == "bad line a.jsonl:6: empty"
    assert (store.counts["bad"], store.counts["read"]) == (2, 302)
    kept = (store.directory / "bad-lines.txt").read_text()
    assert [line.split(": ")[0] for line in kept.splitlines()] == ["a.jsonl:5", "a.jsonl:6"]


def test_one_bad_line_too_many_is_an_error_now_and_for_a_store_of_before(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["{\n"] * 30 + [chat(f"{index}") for index in range(300)])
    with pytest.raises(
        DataInvalid, match=r"^a\.jsonl:30: not JSON.*bad line 30, over data\.max_bad_lines, 29"
    ):
        build(config(path, max_bad_lines=29), tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out").iterdir() if entry.is_dir()] == []
    store, told = build(config(path, max_bad_lines=30), tmp_path / "out")
    assert sum(line.startswith("bad line") for line in told) == 20
    with pytest.raises(DataInvalid, match=r"30 bad lines, over data\.max_bad_lines, 29"):
        build(config(path, max_bad_lines=29), tmp_path / "out")
    assert len((store.directory / "bad-lines.txt").read_text().splitlines()) == 30


def test_no_documents_at_all_are_told_with_what_became_of_them(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["{\n", chat("", "x" * 600)])
    with pytest.raises(DataInvalid, match="no train documents, of 2 read 1 were bad and 1 had fewer than 2"):
        build(config(path), tmp_path / "out")
    same = write_lines(tmp_path / "c.jsonl", [chat("hello"), chat("again")])
    with pytest.raises(DataInvalid, match=r"no train documents, of 4 read .*, 2 are held out too; give"):
        build(config(same, held_out_path=str(same)), tmp_path / "out")
    one = write_lines(tmp_path / "b.jsonl", [chat("hello")])
    with pytest.raises(DataInvalid, match=r"no held-out documents.*data\.held_out_path"):
        build(config(one), tmp_path / "out")


def test_plain_text_is_supervised_throughout(tmp_path):
    (tmp_path / "texts").mkdir()
    for index in range(300):
        (tmp_path / "texts" / f"{index}.txt").write_text(f"text {index}")
    store, _ = build(config(tmp_path / "texts", source="text"), tmp_path / "out")
    assert all(store.part(TRAIN).read(index)[1].all() for index in range(len(store.part(TRAIN))))
    assert b"text 17" in texts(store.part(TRAIN)) + texts(store.part(HELD_OUT))


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [chat("hello")])
    with pytest.raises(DataInvalid, match=r"a\.jsonl:1: token 124 is beyond the target's vocabulary of 100"):
        prepare(config(path), 100, tmp_path / "out", lead=True, beat=lambda: None, tell=lambda _: None)


def test_it_is_tokenised_once(chats, tmp_path, monkeypatch):
    store, _ = build(config(chats), tmp_path / "out")
    monkeypatch.setattr(preparing, "open_tokenizer", None)
    again, told = build(config(chats), tmp_path / "out")
    assert again == store
    assert told == [f"tokens of an earlier run in {store.directory.name}"]


def test_the_fingerprint_follows_all_that_the_tokens_depend_on(chats, tmp_path):
    def of(configured, vocab=VOCAB):
        return fingerprint_of(configured, vocab, lambda: None)

    before = of(config(chats))
    assert before == of(config(chats, max_bad_lines=3, batch_rows=9))
    others = [of(config(chats, context_tokens=256)), of(config(chats, source="text")), of(config(chats), 300)]
    others.append(of(config(chats, held_out_path=str(chats))))
    others.append(of(config(write_chats(tmp_path / "other.jsonl", 400))))
    chats.write_bytes(chats.read_bytes().replace(b"the", b"teh", 1))
    others.append(of(config(chats)))
    assert len({before, *others}) == 7


def test_a_killed_attempt_leaves_nothing_that_is_taken_for_a_store(chats, tmp_path):
    directory = tmp_path / "out"
    name = f"tokens-{fingerprint_of(config(chats), VOCAB, lambda: None)[:16]}"
    dead = multiprocessing.get_context("spawn").Process(target=print)
    dead.start()
    dead.join()
    left = directory / f".{name}.{socket.gethostname()}.{dead.pid}.tmp"
    for half in (left, directory / name):
        (half / "train").mkdir(parents=True)
    store, _ = build(config(chats), directory)
    assert len(store.part(TRAIN)) > 300
    assert not left.exists()


def test_a_store_that_was_cut_short_is_told_with_the_cure(chats, tmp_path):
    store, _ = build(config(chats), tmp_path / "out")
    tokens = store.directory / "train" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-4])
    with pytest.raises(DataInvalid, match=r"files of the wrong length; delete .* and run again"):
        store.part(TRAIN)
    (store.directory / "manifest.json").write_text("{")
    with pytest.raises(DataInvalid, match=r"manifest\.json: cannot be read.*delete"):
        open_store(store.directory)


def follow(configured, directory, results):
    try:
        results.append(build(configured, directory, lead=False)[0])
    except DataInvalid as error:
        results.append(str(error))


def test_other_ranks_wait_for_the_lead_and_open_the_same_store(chats, tmp_path):
    results: list[object] = []
    threads = [
        threading.Thread(target=follow, args=(config(chats), tmp_path / "out", results)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    store, _ = build(config(chats), tmp_path / "out")
    for thread in threads:
        thread.join(60)
    assert results == [store] * 3


def test_other_ranks_are_told_when_the_lead_gives_up_and_not_by_an_older_word(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", ["{\n"])
    strict = config(path, max_bad_lines=0)
    with pytest.raises(DataInvalid):
        build(strict, tmp_path / "out")
    results: list[object] = []
    thread = threading.Thread(target=follow, args=(strict, tmp_path / "out", results))
    thread.start()
    thread.join(1.0)
    assert thread.is_alive()
    assert not results
    with pytest.raises(DataInvalid):
        build(strict, tmp_path / "out")
    thread.join(60)
    assert results
    assert str(results[0]).startswith("the rank that prepares the data gave up: a.jsonl:1: not JSON")


def test_a_lead_without_progress_is_given_up(chats, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "SILENT_S", 0.5)
    beats = []
    with pytest.raises(DataInvalid, match=r"showed no progress for 0 s"):
        build(config(chats), tmp_path / "out", lead=False, beat=lambda: beats.append(1))
    assert len(beats) >= 2


def test_progress_is_told_and_the_heart_beats(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.data.tokenise.TELL_EVERY_S", 0.0)
    monkeypatch.setattr("trainer.data.tokenise.ALIVE_EVERY_S", 0.0)
    beats = []
    _, told = build(
        config(write_chats(tmp_path / "a.jsonl", 600)), tmp_path / "out", beat=lambda: beats.append(1)
    )
    assert sum(line.startswith("tokenised ") and line.endswith(" documents/s") for line in told) == 3
    assert len(beats) >= 4


def peak_of(path, directory):
    tracemalloc.start()
    build(config(path), directory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.data.tokenise.BATCH_CHARACTERS", 1 << 14)
    monkeypatch.setattr("trainer.files._PIECE_BYTES", 1 << 16)
    small = write_chats(tmp_path / "small.jsonl", 600)
    large = write_chats(tmp_path / "large.jsonl", 4000, seed=1)
    peak_of(small, tmp_path / "warm")
    first, second = peak_of(small, tmp_path / "out"), peak_of(large, tmp_path / "out")
    grown = large.stat().st_size - small.stat().st_size
    assert grown > 1_500_000
    assert second < first + grown / 10
    assert second < 1_000_000


def test_a_very_long_document_takes_no_more_than_its_own_length_times_a_few(tmp_path):
    lines = [chat(f"answer {index}") for index in range(300)] + [chat("z" * 1_000_000)]
    assert peak_of(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "out") < 20_000_000


def test_the_embedded_target_has_no_template_to_choose(chats):
    assert isinstance(open_tokenizer(config(chats)), ByteTokenizer)
    with pytest.raises(ConfigInvalid, match="the embedded target's is fixed"):
        open_tokenizer(config(chats, chat_template="x.jinja"))


def test_a_target_without_tokenizer_is_told(chats):
    shape = dataclasses.replace(config(chats), target=TargetConfig(path="qwen3-8b", weights="random"))
    with pytest.raises(ConfigInvalid, match=r"qwen3-8b: no tokenizer files there.*stdlib"):
        build(shape, chats.parent / "out")
