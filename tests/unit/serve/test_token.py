from __future__ import annotations

import os
import stat

import pytest

from orchestrator.errors import ConfigError
from orchestrator.serve import token
from orchestrator.serve.token import SESSION_S, Token
from tests.unit.serve.stage import SECRET


def test_it_is_made_at_the_first_use_and_kept_to_its_owner(tmp_path):
    place = tmp_path / "deep" / "down" / "serve.token"
    first = token.load(place)
    assert first.is_new
    assert len(first.secret) >= 40
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    again = token.load(place)
    assert (again.secret, again.is_new) == (first.secret, False)
    assert first.secret not in repr(first)


def test_it_is_looked_for_in_the_users_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert token.load().path == tmp_path / "dflashctl" / "serve.token"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused_with_what_to_do(tmp_path, mode):
    place = tmp_path / "t"
    place.write_text(SECRET)
    place.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        token.load(place)
    assert f"{place}: others may read it (mode {mode:04o})" in str(caught.value)
    assert f"chmod 600 {place}" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "ünprintable-token-of-a-test", "\n\n"])
def test_what_is_no_token_is_refused_and_not_shown(tmp_path, text):
    place = tmp_path / "t"
    place.write_text(text)
    place.chmod(0o600)
    with pytest.raises(ConfigError, match="no token"):
        token.load(place)


def test_a_place_where_none_can_be_made_or_read_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be"):
        token.load(tmp_path / "file" / "t")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        token.load(tmp_path)


def test_two_that_begin_at_once_agree(tmp_path, monkeypatch):
    place = tmp_path / "t"
    real = os.open

    def slow(path, flags, *rest, **more):
        if flags & os.O_CREAT and not place.exists():
            place.write_text(SECRET)
            place.chmod(0o600)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", slow)
    assert token.load(place).secret == SECRET


def test_a_session_holds_for_its_time_and_its_token():
    mine, other = Token(SECRET), Token(SECRET + "x")
    session = mine.session(1000.0)
    assert mine.is_session(session, 1000.0)
    assert mine.is_session(session, 999.0 + SESSION_S)
    assert not mine.is_session(session, 1001.0 + SESSION_S)
    assert not other.is_session(session, 1000.0)
    assert mine.session(1000.0) != session
    until, _, rest = session.partition(".")
    assert not mine.is_session(f"{int(until) + 1}.{rest}", 1000.0)
    for word in ("", ".", "..", "x.y.z", session[:-1], session + "0", "ü.ü.ü", "\ud800.a.b"):
        assert not mine.is_session(word, 1000.0), word
    assert SECRET not in session


def test_only_the_token_fits():
    mine = Token(SECRET)
    assert mine.fits(SECRET)
    for word in ("", SECRET[:-1], SECRET + "x", SECRET.upper(), "ü", "\ud800"):
        assert not mine.fits(word)


@pytest.mark.parametrize("name", ["link", "link/token"])
def test_a_link_that_leads_nowhere_is_told(tmp_path, name):
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "away")
    with pytest.raises(ConfigError, match="leads nowhere"):
        token.load(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="no token"):
        token.load(tmp_path / "pipe")
