"""A trainer that prints its token and dies of it: nobody who looks at the run sees it, by whatever verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.local import Local, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SECRET = "s3cret-value-of-mine"
STARS = "*" * len(SECRET)
TELLS = (
    'echo "got ${#MY_TOKEN} letters: $MY_TOKEN"; sleep 2; '
    'printf "in two: s3cret-val"; sleep 1; echo "ue-of-mine"; '
    'echo "RuntimeError: CUDA error: out of memory near $MY_TOKEN" >&2; exit 1'
)


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        here.env["MY_TOKEN"] = SECRET
        yield here


@pytest.mark.slow
def test_a_secret_that_a_trainer_prints_is_on_no_screen_and_not_on_record(local):
    script = local.home / "train.sh"
    script.write_text(TELLS)
    local.launch("--run", "r", "--env", "MY_TOKEN", "--", "sh", str(script))
    watch = local.watch("r", "--observe-only")
    assert watch.end() == 10, watch.story()
    said = {
        "watch": watch.out.read_text(),
        "logs": local.run("logs", "r").stdout,
        "raw": local.run("logs", "r", "--raw").stdout,
        "explain": local.run("explain", "r").stdout,
        "explain --json": local.run("explain", "r", "--json").stdout,
        "events": local.run("events", "r", "--json").stdout,
        "status": local.run("status", "r", "--json", code=10).stdout,
        "diff": local.run("diff", "r:1", "r:1", code=None).stdout,
    }
    for verb, text in said.items():
        assert "s3cret" not in text, verb
    for verb in ("watch", "logs", "raw"):
        assert f"got 20 letters: {STARS}" in said[verb], verb
        assert f"in two: {STARS}" in said[verb], verb
    for verb in ("watch", "explain", "explain --json", "events", "status"):
        assert "near *****" in said[verb], verb
    log = (local.state / "runs" / "r" / "attempts" / "1" / "log").read_bytes()
    assert log.count(SECRET.encode()) == 3, "it is masked on its way out, not on the disk"
    for path in local.home.rglob("*"):
        if path.is_file() and local.state not in path.parents and path != script:
            assert b"s3cret-val" not in path.read_bytes(), path


def test_a_launch_with_a_secret_in_its_words_starts_nothing_and_does_not_repeat_it(local):
    for words in (
        ("--env", "MY_TOKEN", "--", "train.py", SECRET),
        ("--", "train.py", "--api-key", "abc123def"),
        ("--set", "data.path=https://me:pa55word@host/x"),
    ):
        refused = local.launch("--run", "r", *words, code=None)
        assert refused.returncode not in (0, 1), refused.stderr
        assert "everybody here and there can read it" in refused.stderr
        for secret in (SECRET, "abc123def", "pa55word"):
            assert secret not in refused.stderr + refused.stdout
    assert local.json("ps", "--offline")["runs"] == []
