"""What must hold after any schedule: by the trainers' witness, the run directory, the watches, the record."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

from orchestrator.record import Record

if TYPE_CHECKING:
    from tests.integration.chaos.played import Played, Told

# What a death of this kind may be called. A SIGKILL from outside and the OOM killer's are one in the log.
NAMES = {
    "fx": {"fx_trace_race"},
    "flood": {"fx_trace_race"},
    "oom": {"oom_cuda"},
    "traceback": {"python_exception"},
    "KILL": {"signal_exit", "oom_host"},
    "SEGV": {"signal_exit"},
    "ABRT": {"signal_exit"},
    "hang": {"hang"},
}
# What ends a trainer without a word of its own. A full disk also takes the words.
KILLERS = {"trainer_kill", "ct_stop", "disk_full", "user_stop", "user_stop_failed"}
GOOD_ENDS = {0, 3, -9}
# What takes a death's own words, or puts other ones in their place.
DISTURBING = {"disk_full", "ct_stop", "trainer_kill", "supervisor_kill", "user_stop"}


def judge(played: Played) -> list[str]:
    """Return what went wrong, a sentence each; none is what is wanted."""
    problems = list(played.problems)
    problems += _one_trainer(played)
    problems += _ends(played)
    for told in played.watches:
        problems += _watch(played, told)
    problems += _log(played)
    problems += _record(played)
    return problems


# -- the trainers


def _one_trainer(played: Played) -> list[str]:
    seen = played.witness()
    problems = [f"two trainers at once: attempt {e['attempt']}" for e in seen if e["event"] == "double"]
    begun = Counter(e["attempt"] for e in seen if e["event"] == "begin")
    problems += [f"attempt {n} was begun {count} times" for n, count in begun.items() if count > 1]
    attempts = played.attempts
    if attempts != list(range(1, len(attempts) + 1)):
        problems.append(f"attempts have a gap: {attempts}")
    return problems


def _ends(played: Played) -> list[str]:
    """No attempt was ended that nobody but the watch can have ended, unless it hung."""
    seen, problems = played.witness(), []
    is_stopped = played.num_at_stop is not None
    for number in played.attempts:
        own = [e for e in seen if e["attempt"] == number]
        events = {e["event"] for e in own}
        hung = any(e.get("how") == "hang" for e in own)
        begin = own[0]["at"] if own else 0.0
        after = next((e["at"] for e in seen if e["attempt"] > number), float("inf"))
        kinds = {kind for at, kind in played.done if begin - 5 <= at <= after}
        if "term" in events and not hung and not kinds & {"user_stop", "user_stop_failed"}:
            problems.append(f"attempt {number} was told to stop while it was well")
        if own and not events & {"dying", "finished", "error", "stopped"} and not kinds & KILLERS:
            problems.append(f"attempt {number} ended, and nobody is known who ended it ({sorted(kinds)})")
    finished = [e["attempt"] for e in seen if e["event"] == "finished"]
    if finished and played.attempts[-1] > finished[0]:
        problems.append(f"attempt {finished[0]} had finished, and {played.attempts[-1]} was begun")
    if is_stopped and len(played.attempts) > (played.num_at_stop or 0):
        problems.append(f"relaunched after its user had stopped attempt {played.num_at_stop}")
    if not is_stopped and not finished:
        problems.append("it never finished")
    return problems


# -- the watches


def _watch(played: Played, told: Told) -> list[str]:
    problems, events, who = [], told.events(), told.child.out.name
    err = told.child.err.read_text()
    if "Traceback" in err:
        problems.append(f"{who}: a traceback: {err[-600:]}")
    code = told.child.code
    if code not in GOOD_ENDS and not _may_refuse(told, code):
        last = [f"{e['kind']}: {e.get('text', e)}" for e in events if e.get("kind") != "metrics"][-3:]
        problems.append(f"{who}: exit code {code}: {err[-300:]} {last}")
    state = None
    for event in events:
        kind, detail = event.get("kind"), event.get("detail", {})
        if kind == "fault":
            problems.append(f"{who}: {event['text']}")
        if kind in ("diagnosis", "state", "blind") and "state" in detail:
            state = detail["state"]
        if kind == "act" and state not in ("dead", "hung"):
            problems.append(f"{who}: {event['text']!r} while the run was {state}")
        if kind == "diagnosis" and detail.get("state") == "hung" and not _hangs(played, event["attempt"]):
            problems.append(f"{who}: attempt {event['attempt']} was called hung and was not")
    return problems


def _may_refuse(told: Told, code: int | None) -> bool:
    """A watch from another machine asks the container for the run first, and may find nobody there."""
    return told.record == "b" and code in (4, 14, 20)


def _hangs(played: Played, attempt: int) -> bool:
    return any(e["attempt"] == attempt and e.get("how") == "hang" for e in played.witness())


# -- the log


def _log(played: Played) -> list[str]:
    """Each watch tells a log's lines one after the other; together those of a record leave nothing out."""
    problems = []
    for number in played.attempts:
        path = played.place.runs / played.run / "attempts" / str(number) / "log"
        if not path.exists():
            continue
        lines = _lines(path.read_bytes())
        untold = set(range(len(lines)))
        for told in played.watches:
            events = [e for e in told.events() if e.get("kind") == "log"]
            said = [e["text"] for e in events if e["attempt"] == number]
            if not said:
                continue
            # An attempt that began before its eyes is told from its first line.
            must_begin_at = 0 if events[0]["attempt"] < number else None
            begin = _find(lines, said, must_begin_at)
            if begin is None:
                where = _where(lines, said, must_begin_at)
                problems.append(f"{told.child.out.name}: attempt {number}: lines lost or doubled: {where}")
            elif told.record == "a":
                untold -= set(range(begin, begin + len(said)))
        if untold and not _had_another_watch(played):
            problems.append(f"attempt {number}: lines never told: {_ranges(untold)} of {len(lines)}")
    return problems


def _ranges(numbers: set[int]) -> str:
    begins = sorted(n for n in numbers if n - 1 not in numbers)
    ends = sorted(n for n in numbers if n + 1 not in numbers)
    return ", ".join(f"{begin} to {end}" for begin, end in zip(begins, ends, strict=True))


def _lines(data: bytes) -> list[str]:
    pieces = data.split(b"\n")
    pieces = pieces if pieces[-1] else pieces[:-1]
    return [piece.decode("utf-8", "replace") for piece in pieces]


def _find(lines: list[str], said: list[str], begin: int | None) -> int | None:
    """Return where `said` stands in `lines` as one piece: at `begin`, if that is given."""
    places = range(len(lines)) if begin is None else (begin,)
    return next((at for at in places if lines[at : at + len(said)] == said), None)


def _where(lines: list[str], said: list[str], begin: int | None) -> str:
    """Say where the first line that does not belong came."""
    if begin is None:
        begin = lines.index(said[0]) if said[0] in lines else len(lines)
    rest = lines[begin:]
    at = next((i for i, line in enumerate(said) if i >= len(rest) or rest[i] != line), len(said) - 1)
    expected = rest[at] if at < len(rest) else "the end of the file"
    return f"line {at + 1} told of it is {said[at]!r}, and the file has {expected!r}"


def _had_another_watch(played: Played) -> bool:
    """While this machine's watch was away, another's may have begun the next attempt: that log is its own."""
    return any(told.record == "b" for told in played.watches)


# -- the record


def _record(played: Played) -> list[str]:
    problems = []
    for which in ("a", "b"):
        path = played.record_path(which)
        if path.exists():
            problems += [f"record {which}: {problem}" for problem in _one_record(played, which)]
    return problems


def _one_record(played: Played, which: str) -> list[str]:
    path = played.record_path(which)
    with sqlite3.connect(path) as raw:
        (whole,) = raw.execute("PRAGMA integrity_check").fetchone()
    raw.close()
    problems = [] if whole == "ok" else [f"damaged: {whole}"]
    with Record.open(path) as record:
        rows = record.runs()
        if not rows:
            return problems
        (row,) = rows
        diagnoses = record.diagnoses(row.id)
        dead = {d.attempt: d for d in diagnoses if d.state.value in ("dead", "hung")}
        if open_ := record.open_intents(row.id):
            problems.append(f"acts without an outcome: {[(a.kind, a.attempt) for a in open_]}")
        known = [a.n for a in record.attempts(row.id)]
        metrics = record.metrics(row.id)
        state = row.state.value if row.state else None
        cursors = {n: record.cursor(row.id, n).log_offset for n in known}
    steps = Counter((m.attempt, m.step) for m in metrics)
    problems += [f"step {key} is recorded {count} times" for key, count in steps.items() if count > 1]
    if which == "a" and not _had_another_watch(played):
        problems += _whole_story(played, known, dead, state, cursors)
    return problems + _names(played, dead)


def _whole_story(
    played: Played, known: list[int], dead: dict[int, Any], state: str | None, cursors: dict[int, int]
) -> list[str]:
    problems, attempts = [], played.attempts
    if known != attempts:
        problems.append(f"attempts {known}, and there were {attempts}")
    wanted = "stopped" if played.num_at_stop is not None else "finished"
    finished = any(e["event"] == "finished" for e in played.witness())
    if state != wanted and not (finished and state == "finished"):
        problems.append(f"the run's state is {state}, not {wanted}")
    stopped = {played.num_at_stop}
    problems += [
        f"attempt {n} ended and no death is recorded"
        for n in attempts[:-1]
        if n not in dead and n not in stopped
    ]
    for number, told in cursors.items():
        path = played.place.runs / played.run / "attempts" / str(number) / "log"
        size = path.stat().st_size if path.exists() else 0
        if told != size:
            problems.append(f"attempt {number}: the log was read up to {told} of {size} bytes")
    return problems


def _names(played: Played, dead: dict[int, Any]) -> list[str]:
    """A death that the trainer chose, and that nothing disturbed, has its name."""
    problems = []
    seen = played.witness()
    for number, found in dead.items():
        own = [e for e in seen if e["attempt"] == number]
        how = next((e["how"] for e in own if e["event"] == "dying"), None)
        begin = own[0]["at"] if own else 0.0
        # A watch that was away may see the death only after what came later: a container that was restarted.
        seen_by = next((e["at"] for e in seen if e["attempt"] > number), float("inf"))
        if how not in NAMES or any(
            kind in DISTURBING and begin - 5 <= at <= seen_by for at, kind in played.done
        ):
            continue
        name = found.failure.value if found.failure else None
        if name not in NAMES[how]:
            problems.append(f"attempt {number} died of {how} and was called {name}")
    return problems


def num_told_again(played: Played) -> int:
    """Return how many lines a later watch of the same record told again that an earlier had told."""
    again = 0
    for number in played.attempts:
        known: set[str] = set()
        for told in played.watches:
            if told.record != "a":
                continue
            said = {e["text"] for e in told.events() if e.get("kind") == "log" and e["attempt"] == number}
            again += len(said & known)
            known |= said
    return again
