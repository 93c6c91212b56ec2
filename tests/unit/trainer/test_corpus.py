from pathlib import Path

import pytest

from trainer.corpus import Source, is_held_out, read_corpus
from trainer.errors import DataInvalid

HELD_OUT = next(f"a{i}.py" for i in range(999) if is_held_out(f"a{i}.py"))
TRAINED = next(f"a{i}.py" for i in range(999) if not is_held_out(f"a{i}.py"))
TEXT = b"x = 1\n" * 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / HELD_OUT).write_bytes(TEXT)
    (tmp_path / TRAINED).write_bytes(TEXT)
    return tmp_path


def paths(sources: tuple[Source, ...]) -> list[str]:
    return [source.path for source in sources]


def test_whole_files_are_held_out(root):
    corpus = read_corpus(root)
    assert (paths(corpus.train), paths(corpus.held_out)) == ([TRAINED], [HELD_OUT])
    assert corpus.train_bytes == len(TEXT)


def test_about_one_file_in_sixteen_is_held_out():
    assert 40 < sum(is_held_out(f"package/module{i}.py") for i in range(1000)) < 90


def test_what_is_not_utf8_or_too_short_or_binary_is_left_out(root):
    before = paths(read_corpus(root).train)
    (root / "latin.py").write_bytes(b"# \xe9\n" * 500)
    (root / "short.py").write_bytes(b"x = 1\n")
    (root / "binary.py").write_bytes(b"x = 1\0" * 500)
    assert paths(read_corpus(root).train) == before


@pytest.mark.parametrize("folder", ["site-packages", "encodings", "test", "json/tests"])
def test_third_party_code_tables_and_tests_are_left_out(root, folder):
    (root / folder).mkdir(parents=True)
    (root / folder / "b.py").write_bytes(TEXT)
    assert paths(read_corpus(root).train) == [TRAINED]


def test_tests_are_trained_on_when_asked_and_never_held_out(root):
    (root / "test").mkdir()
    for index in range(64):
        (root / "test" / f"test_{index}.py").write_bytes(TEXT)
    corpus = read_corpus(root, include_tests=True)
    assert paths(corpus.held_out) == [HELD_OUT]
    assert 50 < len(corpus.train) < 66


def test_the_fingerprint_follows_the_text(root):
    before = read_corpus(root).fingerprint
    assert read_corpus(root).fingerprint == before
    (root / TRAINED).write_bytes(TEXT + b"y = 2\n")
    assert read_corpus(root).fingerprint != before


def test_an_empty_folder_is_told_with_the_cure(tmp_path):
    with pytest.raises(DataInvalid, match=r"0 training and 0 held-out.*data\.stdlib"):
        read_corpus(tmp_path)
