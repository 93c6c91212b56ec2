"""What each key does, pressed in the view itself."""

from __future__ import annotations

import io
import threading
from contextlib import nullcontext

import pytest
from textual import events

from orchestrator.errors import ConfigError, Exit, HostKeyRefused, NotFound, RecordError
from orchestrator.tui.app import WatchApp
from orchestrator.tui.body import TALL, WIDE
from orchestrator.tui.logview import MAX_LINES, LogView
from orchestrator.tui.screens import Confirm, LogScreen, Reader
from orchestrator.types.failure import RunState
from orchestrator.watch.events import Level
from tests.builders import ago
from tests.unit.tui.stage import chosen, names, settle, text_of


@pytest.fixture
def three(stage):
    """Three runs, by state: zoe is dead, amy and bob are healthy."""
    stage.add("amy", step=10, tokens_per_s=9.0)
    stage.add("bob", step=30, tokens_per_s=5.0)
    stage.add("zoe", RunState.DEAD, step=20, tokens_per_s=None)
    return stage


async def press(app: WatchApp, pilot, keys: str) -> None:
    for key in keys.split():
        await pilot.press(key)
    await settle(app, pilot)


# -- choosing, sorting, filtering


def test_the_cursor_chooses_a_run(three):
    async def act(app, pilot):
        assert names(app) == ["zoe", "amy", "bob"], "what needs a look is first"
        assert chosen(app) == "zoe"
        for keys, name in (
            ("down", "amy"), ("j", "bob"), ("down", "bob"), ("k", "amy"), ("up up", "zoe"), ("G", "bob"),
            ("g", "zoe"), ("end", "bob"), ("home", "zoe"), ("pagedown", "bob"), ("pageup", "zoe"),
            ("down", "amy"),
        ):  # fmt: skip
            await press(app, pilot, keys)
            assert chosen(app) == name, keys

    assert "amy at pve/200" in three.play(act=act).text


def test_runs_are_sorted_and_the_chosen_one_stays_chosen(three):
    async def act(app, pilot):
        for keys, order in (
            ("N", "amy bob zoe"), ("N", "zoe bob amy"), ("P", "bob zoe amy"), ("T", "amy bob zoe"),
            ("S", "zoe amy bob"), ("o", "amy bob zoe"), ("O", "zoe bob amy"), ("o o", "amy bob zoe"),
            ("A", "amy bob zoe"), ("A", "zoe bob amy"),
        ):  # fmt: skip
            await press(app, pilot, keys)
            assert names(app) == order.split(), keys
            assert chosen(app) == "zoe"

    three.play(act=act)


def test_the_chosen_run_stays_chosen_when_another_one_dies(three):
    async def act(app, pilot):
        await pilot.press("N", "up")
        assert chosen(app) == "bob"
        await pilot.press("S")
        amy = three.cards[0]
        three.replace(type(amy)(id=amy.id, name="amy", target=amy.target, state=RunState.DEAD))
        await settle(app, pilot)
        assert chosen(app) == "bob"

    three.play(act=act)


def test_a_filter_shows_only_what_has_the_word_and_escape_shows_all(three):
    async def act(app, pilot):
        await press(app, pilot, "slash b o")
        assert (names(app), chosen(app)) == (["bob"], "bob")
        await press(app, pilot, "backspace backspace d e a d enter")
        assert (names(app), chosen(app)) == (["zoe"], "zoe")
        assert "only /dead: 1" in text_of(app)
        await press(app, pilot, "escape")
        assert names(app) == ["zoe", "amy", "bob"]
        await press(app, pilot, "slash q s r escape")
        assert names(app) == ["zoe", "amy", "bob"]
        await press(app, pilot, "slash q s r enter")
        assert "none of 3 runs has 'qsr'" in text_of(app)

    played = three.play(act=act)
    assert three.asking.asked == []
    assert played.app.return_value is None, "a letter that is typed is no key"


def test_what_is_typed_ahead_of_the_prompt_is_its_answer_and_no_key(three):
    async def act(app, pilot):
        for keys in (("slash", "q", "slash", "s"), ("escape",), ("4",), ("slash", "s", "q", "enter")):
            for key in keys:
                app.post_message(events.Key(key, key if len(key) == 1 else None))
            await settle(app, pilot)
            assert len(app.screen_stack) == 1
        assert app.body.log_view.pattern == "sq"

    played = three.play(act=act)
    assert played.app.return_value is None


def test_runs_come_and_go(three):
    async def act(app, pilot):
        three.cards = three.cards[:2]
        three.board.publish()
        await settle(app, pilot)
        assert names(app) == ["amy", "bob"]
        assert chosen(app) == "amy"
        three.cards = []
        three.board.publish()
        await settle(app, pilot)
        assert app.card is None
        for key in ("s", "r", "e", "a", "enter", "l", "down", "n", "tab", "tab"):
            await pilot.press(key)
            await settle(app, pilot)
        assert len(app.screen_stack) == 1
        three.add("new")
        await settle(app, pilot)
        assert chosen(app) == "new"

    three.play(act=act)
    assert three.asking.asked == []


# -- stop, relaunch


@pytest.mark.parametrize(("key", "verb"), [("s", "stop"), ("r", "relaunch")])
def test_an_act_needs_a_yes(three, key, verb):
    async def act(app, pilot):
        await press(app, pilot, "down")
        for answer in ("n", "escape", "q", "N", "enter x space n"):
            await press(app, pilot, key)
            assert isinstance(app.screen, Confirm)
            assert f"{verb.title()} amy at pve/200?" in text_of(app)
            await press(app, pilot, answer)
            assert len(app.screen_stack) == 1, answer
            assert three.asking.asked == [], answer
        await press(app, pilot, f"{key} y")
        assert three.asking.asked == [(verb, "amy", "in dflashctl watch")]

    assert "amy: asked" in three.play(act=act).text


def test_the_run_that_was_asked_about_is_the_one_that_is_stopped(three):
    async def act(app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        app.body.runs.action_move(2)
        await pilot.press("y")

    three.play(act=act)
    assert three.asking.asked == [("stop", "zoe", "in dflashctl watch")]


def test_a_refusal_is_said_and_the_view_goes_on(three):
    three.asking.error = ConfigError(
        "zoe: something asked before is still under way", hint="wait for its outcome"
    )
    played = three.play(keys="s y")
    assert "zoe: something asked before is still under way; wait for its outcome" in played.text


def test_what_came_of_it_is_told_in_the_line_above_the_keys(three):
    async def act(app, pilot):
        three.tell("outcome", "attempt 2 started", "amy", Level.GOOD)
        await settle(app, pilot)

    lines = three.play(act=act).text.splitlines()
    assert lines[-2].endswith("amy outcome: attempt 2 started")


# -- reading


def test_explain_shows_what_is_known_first_and_then_more(three):
    goes_on = threading.Event()

    def explains(row):
        yield [f"{row.name} [red]died", "(reading)"]
        assert goes_on.wait(60)
        yield [f"{row.name} [red]died", "  | the line"]

    three.explains = explains

    async def act(app, pilot):
        await pilot.press("e")
        for _ in range(50):
            await pilot.pause(0.02)
            app.tick()
        assert [text.plain for text in app.screen.lines.texts] == ["zoe [red]died", "(reading)"]
        await pilot.press("escape")
        await pilot.press("down")
        assert chosen(app) == "amy", "a container that does not answer holds up no key"
        await pilot.press("up")
        await pilot.press("e")
        await pilot.pause()
        assert "being read already" in text_of(app)
        goes_on.set()

    three.play(act=act)


def test_explain_says_why_it_cannot(three):
    def explains(row):
        raise NotFound(f"{row.name}: no failure on record", hint="look")
        yield []

    three.explains = explains
    played = three.play(keys="e")
    assert "zoe: no failure on record; look" in played.text
    assert isinstance(played.screen, Reader)


def test_details_show_everything_and_go_on_being_true(three):
    async def act(app, pilot):
        await pilot.press("down", "enter")
        await settle(app, pilot)
        assert any("alive, step 1234" in text.plain for text in app.screen.lines.texts)
        amy = three.cards[0]
        three.replace(
            type(amy)(id=amy.id, name="amy", target=amy.target, state=RunState.HUNG, summary="stands still")
        )
        await settle(app, pilot)
        assert any("stands still" in text.plain for text in app.screen.lines.texts)

    three.play(act=act)


def test_help_has_every_key_and_every_sign(three):
    played = three.play((100, 60), "question_mark")
    text = played.text
    for word in ("attach", "explain", "relaunch", "stop", "end the watch", "healthy", "CT frozen", "stale"):
        assert word in text
    assert isinstance(played.screen, Reader)
    assert not isinstance(three.play(keys="question_mark q").screen, Reader)


# -- panels


def test_tab_goes_around_the_panels_and_escape_back_to_the_runs(three):
    async def act(app, pilot):
        places = []
        for _ in range(5):
            await pilot.press("tab")
            places.append(app.focused.id)
        assert places == ["curves", "gpus", "story", "log", "runs"]
        await pilot.press("shift+tab")
        assert app.focused.id == "log"
        await pilot.press("escape")
        assert app.focused.id == "runs"
        await pilot.press("3")
        assert app.focused.id == "story"

    three.play((80, 24), act=act)


def test_the_panels_of_a_wide_screen_are_all_there(three):
    async def act(app, pilot):
        places = []
        for _ in range(5):
            await pilot.press("tab")
            places.append(app.focused.id)
        assert places == ["story-left", "curves", "gpus", "log", "runs"]

    text = three.play((120, 40), act=act).text
    for title in ("story", "loss and speed", "GPUs", "log"):
        assert f"\u2500{title}\u2500" in text


def test_it_is_laid_out_anew_at_another_size(three):
    async def act(app, pilot):
        for size in ((120, 40), (80, 24), (40, 10), (20, 5), (200, 60), (104, 30), (103, 50)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            assert chosen(app) == "zoe"
        await pilot.resize_terminal(120, 40)
        await settle(app, pilot)

    assert "loss and speed" in three.play((80, 24), act=act).text


def test_the_layout_is_that_of_the_size_it_has_now_and_not_of_the_one_before(three):
    async def act(app, pilot):
        for size in ((130, 40), (80, 24), (130, 40), (79, 23), (104, 34), (103, 34), (104, 33), (130, 40)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            is_narrow = size[0] < WIDE
            assert app.body.has_class("narrow") is is_narrow, size
            assert app.body.is_single is (is_narrow or size[1] < TALL), size
            assert app.body.runs.size.width == (size[0] if is_narrow else max(50, size[0] * 46 // 100)), size

    three.play((80, 24), act=act)


def test_curves_without_room_say_so_and_not_that_there_is_no_step(stage):
    card = stage.add("amy")
    stage.record.save_attempt(card.id, 1, started_at=ago(3600), first_step=10, last_step=400, by="user")
    stage.metrics(card, 1, 10, 400)

    async def act(app, pilot):
        await press(app, pilot, "1")
        for size, is_said in (((28, 24), True), ((80, 24), False), ((28, 24), True)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            assert ("too little room for curves" in text_of(app)) is is_said, size
            assert "no step on record" not in text_of(app)

    stage.play(act=act)


# -- the log


def log_of(app: WatchApp) -> LogView:
    return app.body.log_view


def test_a_log_follows_until_it_is_scrolled_up_and_again_from_its_end(stage):
    stage.add("amy")
    stage.log("amy", *(f"line {n}" for n in range(100)))

    async def act(app, pilot):
        await pilot.press("4")
        log = log_of(app)
        assert log.is_at_end
        stage.log("amy", "line 100")
        await settle(app, pilot)
        assert log.is_at_end
        await pilot.press("k", "k", "k")
        await settle(app, pilot)
        top = log.scroll_offset.y
        stage.log("amy", *(f"line {n}" for n in range(101, 150)))
        await settle(app, pilot)
        assert log.scroll_offset.y == top, "what is read stays where it is"
        await pilot.press("G")
        stage.log("amy", "the end")
        await settle(app, pilot)
        assert log.is_at_end
        assert log.texts[-1].plain == "the end"

        await press(app, pilot, "k k")
        assert "paused, G follows" in text_of(app)

    stage.play(act=act)


def test_a_log_is_searched(stage):
    stage.add("amy")
    stage.log("amy", "an Error here", *(f"line {n}" for n in range(50)), "another error", *(["quiet"] * 60))

    async def act(app, pilot):
        await press(app, pilot, "4 slash e r r o r enter")
        assert "another error" in text_of(app)
        await press(app, pilot, "N")
        assert "an Error here" in text_of(app)
        await press(app, pilot, "n")
        assert "another error" in text_of(app)
        await press(app, pilot, "slash x y z enter")
        assert "not found: xyz" in text_of(app)

    stage.play(act=act)


def test_the_log_fills_the_screen_and_goes_on(stage):
    stage.add("amy")
    stage.log("amy", *(f"line {n}" for n in range(30)))

    async def act(app, pilot):
        await pilot.press("l")
        await settle(app, pilot)
        assert isinstance(app.screen, LogScreen)
        stage.log("amy", "x" * 200 + " END")
        await settle(app, pilot)
        assert [text.plain[:8] for text in app.screen.lines.texts].count("line 29") == 1

    played = stage.play(act=act)
    assert "END" in played.text, "long lines are folded"
    assert "follows" in played.text


def test_no_log_shows_none(stage):
    stage.desk["shows_log"] = False
    stage.add("amy")
    stage.log("amy", "secret line")
    assert "secret line" not in stage.play().text
    assert "secret line" not in stage.play((120, 40)).text


def test_lines_from_before_are_fetched_and_joined_without_a_gap(stage):
    stage.add("amy")
    stage.tails = lambda row: ["a", "b", "c"]

    async def act(app, pilot):
        assert [text.plain for text in log_of(app).texts] == ["a", "b", "c"]
        stage.log("amy", "b", "c", "d")  # the stream begins after the look, and before its end
        await settle(app, pilot)
        assert [text.plain for text in log_of(app).texts] == ["a", "b", "c", "d"]
        app.chosen.take_tail(
            stage.cards[0].id, ["x", "a", "b"]
        )  # or the look ends after the stream has begun
        assert [text.plain for text in log_of(app).texts] == ["x", "a", "b", "c", "d"]

    stage.play(act=act)


def test_a_container_that_cannot_be_asked_for_its_log_is_said(stage):
    def tails(row):
        raise NotFound("pve: no route")

    stage.tails = tails
    stage.add("amy")
    assert "cannot be read now: pve: no route" in stage.play((120, 40)).text


def test_a_log_of_many_lines_keeps_the_newest(stage):
    stage.add("amy")

    async def act(app, pilot):
        for batch in range(0, MAX_LINES + 1000, 500):
            stage.log("amy", *(f"line {n}" for n in range(batch, batch + 500)))
            await settle(app, pilot)
        log = log_of(app)
        assert len(log.texts) == MAX_LINES
        assert log.texts[-1].plain == f"line {MAX_LINES + 999}"
        assert log.is_at_end

    stage.play(act=act)


def test_the_colours_of_the_trainer_are_kept_unless_nobody_wants_colours(stage):
    stage.add("amy")
    stage.log("amy", "\x1b[31mred\x1b[0m fine \x1b[2J[bold]x[/]")
    texts = []

    async def act(app, pilot):
        texts.extend(log_of(app).texts[-1:])

    stage.play(act=act)
    stage.desk["colours"] = False
    stage.play(act=act)
    assert [text.plain for text in texts] == ["red fine [bold]x[/]"] * 2
    assert [bool(text.spans) for text in texts] == [True, False]


# -- the end


@pytest.mark.parametrize(("ends", "key", "code"), [
    (True, "q", Exit.INTERRUPTED), (True, "ctrl+c", Exit.INTERRUPTED), (True, "ctrl+q", Exit.INTERRUPTED),
    (False, "q", Exit.OK), (False, "ctrl+c", Exit.INTERRUPTED), (True, "s ctrl+c", Exit.INTERRUPTED),
    (True, "e ctrl+c", Exit.INTERRUPTED),
])  # fmt: skip
def test_leaving_ends_the_view_alone(three, ends, key, code):
    three.desk["ends"] = ends
    app = three.play(keys=key).app
    assert app.return_value is not None
    assert app.return_value.code is code
    assert three.asking.asked == []


def test_it_ends_when_all_runs_have_ended_with_their_code(three):
    three.watch.outcome = Exit.NEEDS_PERSON
    app = three.play().app
    assert app.return_value is not None
    assert app.return_value.code is Exit.NEEDS_PERSON


def test_top_never_ends_by_itself(three):
    three.desk.update(ends=False, verb="top")
    three.watch.outcome = Exit.OK
    played = three.play()
    assert played.app.return_value is None
    assert "q leave" in played.text


def test_a_fault_of_the_watch_ends_it(three):
    three.watch.fault = RecordError("disk full")
    app = three.play().app
    assert app.return_value is not None
    assert app.return_value.code is None


def test_a_record_that_cannot_be_read_is_said(three):
    three.record.close()

    def broken(*_args, **_kwargs):
        raise RecordError("record: disk I/O error")

    three.record.attempts = broken
    assert "record: disk I/O error" in three.play().text


def test_a_watch_that_stands_still_is_said(three):
    three.watch.turned_s_ago = 95.0
    assert "the watch has not turned for 95 s" in three.play().text


# -- attach


def test_attach_runs_the_command_and_comes_back(three, tmp_path, monkeypatch):
    monkeypatch.setattr(WatchApp, "suspend", lambda _: nullcontext())  # there is no terminal here
    three.attaches = ["sh", "-c", f"echo in > {tmp_path}/was"]
    played = three.play(keys="a")
    assert (tmp_path / "was").read_text() == "in\n"
    assert "zoe at pve/200" in played.text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "sh ended with exit code 3"),
        ("kill -INT $$", "sh was interrupted"),
        ("kill -TERM $$", "sh was ended by SIGTERM"),
    ],
)
def test_how_the_other_program_ended_is_said_in_words(three, monkeypatch, script, said):
    monkeypatch.setattr(WatchApp, "suspend", lambda _: nullcontext())
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    three.attaches = ["sh", "-c", script]
    assert said in three.play(keys="a").text


def test_attach_that_is_refused_is_told_and_the_view_goes_on(three, monkeypatch):
    monkeypatch.setattr(WatchApp, "suspend", lambda _: nullcontext())
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    class Refusing(list[str]):
        def __iter__(self):
            raise HostKeyRefused("pve: unknown host key SHA256:x")

    three.attaches = Refusing()
    assert "pve: unknown host key SHA256:x" in three.play(keys="a").text
