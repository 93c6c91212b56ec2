"""A growing log, read by the piece: no secret leaves, no byte is lost or doubled, and no offset moves."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.guest import clock, masked
from orchestrator.guest.feed import AttemptFeed
from orchestrator.guest.masked import MaskedFile, masked_piece
from orchestrator.guest.masks import FORMER, RunMasks, keep_former
from orchestrator.guest.paths import RunDir
from orchestrator.masking import REACH, Masker

VALUE = b"s3cret-value-of-mine"
TOKEN = b"hf_" + b"aB3dE6gH9" * 4
URL = b"redis://user:p4ssw0rd@host:6379/0"
TOLD = {VALUE: VALUE, TOKEN: TOKEN[3:], URL: b"p4ssw0rd"}  # what is written, what of it must never be seen

plain = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\n", b"\r", b" ", b"step 3/10 loss 2.5\n", b"hf_", b"s3cr", b"\x1b[1m", b"\xff\xfe"]),
)
secrets = st.sampled_from(list(TOLD))
# A secret stands by itself: glued to letters it has another shape.
parts = st.lists(st.one_of(plain, secrets.map(lambda s: b" " + s + b" ")), max_size=20)


def told(pieces: list[tuple[int, bytes]]) -> bytes:
    """The bytes in their order; a gap or a repetition fails."""
    out = b""
    for offset, piece in pieces:
        assert offset == len(out)
        out += piece
    return out


def grow(path, data: bytes, cuts: list[int], limit: int) -> bytes:
    """Write `data` in pieces cut at `cuts`, reading after each, as a watch does; what was read."""
    file = MaskedFile(path, lambda: Masker([VALUE.decode()]))
    at, pieces = 0, []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    path.write_bytes(b"")
    for begin, end in pairwise(edges):
        with path.open("ab") as log:
            log.write(data[begin:end])
        is_final = end == len(data)
        while piece := file.piece(at, limit, is_final=is_final):
            pieces.append((at, piece))
            at += len(piece)
    while piece := file.piece(at, limit, is_final=True):
        pieces.append((at, piece))
        at += len(piece)
    return told(pieces)


@settings(max_examples=250, deadline=None)
@given(
    chunks=parts,
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    limit=st.sampled_from([1, 7, 64, 4096]),
    ends_in=st.sampled_from([b"", b"\n", b" " + TOKEN, b" " + VALUE, b" " + URL]),
)
def test_no_secret_leaves_at_any_offset_in_any_chunking(tmp_path_factory, chunks, cuts, limit, ends_in):
    data = b"".join(chunks) + ends_in
    out = grow(tmp_path_factory.mktemp("log") / "log", data, cuts, limit)
    assert len(out) == len(data)
    assert all(new in (old, ord("*")) for old, new in zip(data, out, strict=True))
    for secret in TOLD.values():
        assert secret not in out


@settings(max_examples=100, deadline=None)
@given(chunks=parts, cuts=st.lists(st.integers(0, 2000), max_size=8), limit=st.sampled_from([1, 13, 4096]))
def test_what_is_read_by_the_piece_is_what_would_be_masked_at_once(tmp_path_factory, chunks, cuts, limit):
    data = b"".join(chunks) + b"\n"
    out = grow(tmp_path_factory.mktemp("log") / "log", data, cuts, limit)
    assert out == Masker([VALUE.decode()]).mask(data)


@pytest.mark.parametrize("secret", list(TOLD))
@pytest.mark.parametrize("before", [0, 1, REACH - 20, REACH, REACH + 1, 3 * REACH])
def test_a_line_without_an_end_hides_a_secret_wherever_it_is(tmp_path, secret, before):
    path = tmp_path / "log"
    data = b"." * before + b" " + secret + b" " + b"." * (2 * REACH)
    for limit in (100, 5000, 1 << 17):
        out = grow(path, data, [before + 5, before + 12, before + 100], limit)
        assert TOLD[secret] not in out
        assert len(out) == len(data)


def test_a_window_is_bounded_whatever_the_line(tmp_path):
    """Work a byte is bounded: a piece never reads more than its own bytes and twice the reach of a secret."""
    sizes = []

    def read(at: int, size: int) -> bytes:
        sizes.append(size)
        return b"x" * size  # a file without an end, and without a newline

    for offset in (0, 10, 1 << 31):
        piece, is_holding = masked_piece(read, offset, 1000, Masker(), waits=True)
        assert (len(piece), is_holding) == (1000, False)
    assert max(sizes) <= 1000 + 2 * REACH + 1


def test_the_last_line_waits_for_its_end_and_then_no_longer_than_a_second(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock, "ticking", lambda: now[0])
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo hf_aB3dE6g")
    file = MaskedFile(path, Masker)
    assert file.piece(0, 100, is_final=False) == b"one\n"
    assert (file.piece(4, 100, is_final=False), file.is_holding) == (b"", True)
    now[0] += masked.HOLD_S + 0.01
    assert file.piece(4, 100, is_final=False) == b"two hf_*******"
    assert not file.is_holding
    with path.open("ab") as log:
        log.write(b"H9aB3dE6gH9aB3dE6gH9aB3dE6gH9\n")
    assert file.piece(18, 100, is_final=False) == b"*" * 29 + b"\n"


def test_a_line_that_waits_is_neither_drained_nor_a_reason_to_look_again_at_once(tmp_path):
    run = RunDir(tmp_path, "r")
    run.attempt(1).mkdir(parents=True)
    (run.attempt(1) / "log").write_bytes(b"one\ntwo")
    feed = AttemptFeed(run, 1, RunMasks(run))
    assert [kind for kind, _ in feed.turn()] == ["log"]
    assert list(feed.turn()) == []
    assert (feed.is_drained, feed.has_more) == (False, False)
    (run.attempt(1) / "exit.json").write_text('{"code": 1}')
    assert [kind for kind, _ in feed.turn()] == ["log", "exit"]
    assert (feed.is_drained, feed.log_offset) == (True, 7)


def test_a_progress_bar_is_given_up_to_its_last_return(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\r 10%|#  |\r 20%|## |")
    assert MaskedFile(path, Masker).piece(0, 100, is_final=False) == b"\r 10%|#  |\r"


def run_with(tmp_path, env: dict[str, str], **spec: object) -> RunDir:
    run = RunDir(tmp_path, "r")
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "env").write_text(json.dumps(env))
    (run.path / "run.json").write_text(json.dumps(spec))
    return run


def test_the_values_of_the_env_file_are_masked_by_their_names(tmp_path):
    run = run_with(tmp_path, {"MY_TOKEN": "s3cret-one", "NAME": "plain-name", "LICENCE": "lic-1234"})
    assert RunMasks(run).current().text("s3cret-one plain-name lic-1234") == "********** plain-name lic-1234"


def test_the_launch_may_name_more_and_fewer(tmp_path):
    run = run_with(tmp_path, {"MY_TOKEN": "s3cret-one", "LICENCE": "lic-1234"}, mask=["LICEN*", "!MY_TOKEN"])
    assert RunMasks(run).current().text("s3cret-one lic-1234") == "s3cret-one ********"


def test_a_new_value_is_masked_from_then_on_and_the_old_one_too(tmp_path):
    run = run_with(tmp_path, {"MY_TOKEN": "s3cret-one"})
    masks = RunMasks(run)
    assert masks.current().text("s3cret-one s3cret-two") == "********** s3cret-two"
    keep_former(run, {"MY_TOKEN": "s3cret-two"})
    (run.path / "env").write_text('{"MY_TOKEN": "s3cret-two"}')
    assert masks.current().text("s3cret-one s3cret-two") == "********** **********"
    assert (run.path / FORMER).stat().st_mode & 0o777 == 0o600


def test_an_unchanged_value_is_not_kept_twice(tmp_path):
    run = run_with(tmp_path, {"MY_TOKEN": "s3cret-one"})
    keep_former(run, {"MY_TOKEN": "s3cret-one"})
    assert not (run.path / FORMER).exists()


def test_the_containers_own_environment_is_masked_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of-the-container")
    assert RunMasks(run_with(tmp_path, {})).current().text("of-the-container") == "*" * 16
