"""The chosen run in a few lines, and all that is known of it in many. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from orchestrator.durations import format_duration
from orchestrator.plot.curves import NO_DEATH
from orchestrator.terminal import one_line, plain
from orchestrator.tui.words import (
    age_text,
    gpu_cells,
    next_text,
    progress_text,
    rate_text,
    sign_of,
    skew_text,
    step_text,
)

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.fleet import RunCard
    from orchestrator.record import RunRow


def facts_lines(card: RunCard, now: datetime, width: int, *, acts: bool, utf8: bool) -> list[Text]:
    """Return who it is, how it is, how far it is, and what comes next."""
    sign = sign_of(card, now)
    mark = sign.glyph if utf8 else sign.ascii
    lines = [
        Text.assemble((one_line(card.name), "bold"), (f" at {one_line(card.target)}", "dim")),
        Text.assemble((f"{mark} {sign.word}", sign.style), (_still(card, now), "yellow"), _told(card, now)),
        Text(_progress(card, 10 if width >= 100 else 5, utf8=utf8)),
    ]
    return [*lines, Text(_next(card, now, acts=acts), style="yellow")]


def _told(card: RunCard, now: datetime) -> str:
    word = sign_of(card, now).word
    ago = age_text(card.age_s(now))
    if card.looked_at is not None and word in ("blind", "stale"):
        was = (
            f"it was {card.state.value} {ago} ago" if card.state.value != "blind" else f"last seen {ago} ago"
        )
        return f"; {was}; {one_line(card.blind)}" if card.blind else f"; {was}"
    if card.blind and word == "blind":
        found = card.failure.value if card.failure is not None and _is_of_record(card) else ""
        died = f"; on record: {found}" if found and found not in NO_DEATH else ""
        return f": {one_line(card.blind)}{died}"
    return f": {one_line(card.summary)}" if card.summary else ""


def _is_of_record(card: RunCard) -> bool:
    """Whether the watch has not seen it once, so that all that is shown is the record's."""
    return card.blind is not None and card.looked_at is None and card.attempt is not None


def _progress(card: RunCard, bar_width: int, *, utf8: bool) -> str:
    parts = [f"attempt {card.attempt}" if card.attempt is not None else "no attempt seen"]
    if _is_of_record(card):
        parts[0] = f"on record: {parts[0]}"
    if card.phase is not None and not card.has_ended:
        parts.append(one_line(card.phase))
    if card.step is not None:
        parts.append(f"step {step_text(card)} {progress_text(card, bar_width, utf8=utf8)}".rstrip())
    if card.loss is not None:
        parts.append(f"loss {card.loss:.4g}")
    if card.tokens_per_s is not None and not card.has_ended:
        parts.append(f"{rate_text(card.tokens_per_s)} tok/s")
    if card.eta_s is not None:
        parts.append(f"{format_duration(card.eta_s)} left")
    if card.checkpoint_step is not None:
        parts.append(f"saved {card.checkpoint_step}")
    return "  ".join(parts)


def _next(card: RunCard, now: datetime, *, acts: bool) -> str:
    parts = [
        "being acted on" if card.is_busy else "",
        next_text(card.next_act, now, acts=acts and card.is_acting),
        skew_text(card.clock_skew_s),
        card.remark,
        card.holders,
    ]
    return "; ".join(one_line(part, 400) for part in parts if part)


def _still(card: RunCard, now: datetime) -> str:
    """Say of a run that passes for healthy that its next step is long overdue."""
    if card.moved_at is None or card.is_stale(now) or not card.is_overdue(now):
        return ""
    return f", no new step for {format_duration((now - card.moved_at).total_seconds())}"


def gpu_lines(card: RunCard, width: int, *, utf8: bool) -> list[Text]:
    """Return the run's GPUs, one a line, then those beside them, and who holds them."""
    if card.gpu_problem and not card.gpus:
        return [Text(f"not seen: {one_line(card.gpu_problem)}", style="yellow")]
    if not card.gpus:
        return [Text("none seen", style="dim")]
    lines: list[Text] = []
    is_beside = False
    for each in sorted(card.gpus, key=lambda gpu: (not gpu.is_own, gpu.gpu.index)):
        gpu = each.gpu
        if not each.is_own and not is_beside:
            is_beside = True
            lines.append(Text("not the run's own:", style="dim"))
        head = f"GPU{gpu.index}"
        if gpu.problem:
            lines.append(Text(f"{head} {one_line(gpu.problem)}", style="yellow"))
            continue
        memory, load, power, heat, pids = gpu_cells(gpu, utf8=utf8, width=width)
        text = Text(f"{head} {memory}  {load}  {power}  {heat}  {pids}", style="" if each.is_own else "dim")
        if gpu.recovery or gpu.remap_failed or gpu.ecc_uncorrected:
            ecc = f"{gpu.ecc_uncorrected} uncorrected ECC errors" if gpu.ecc_uncorrected else ""
            told = "; ".join(one_line(part) for part in (gpu.recovery, ecc) if part)
            text.append(f"  {told or 'memory rows cannot be remapped'}", style="bold red")
        lines.append(text)
    if card.holders:
        lines.append(Text(f"held by {one_line(card.holders, 400)}", style="yellow"))
    if card.gpu_problem:
        lines.append(Text(f"of the past: {one_line(card.gpu_problem)}", style="yellow"))
    return lines


def detail_lines(card: RunCard, row: RunRow | None, now: datetime, *, acts: bool, utf8: bool) -> list[Text]:
    """Return everything, a line each."""
    lines = [*facts_lines(card, now, 120, acts=acts, utf8=utf8)[:3], Text()]
    pairs: list[tuple[str, str]] = [
        ("last good look", f"{age_text(card.age_s(now))} ago" if card.looked_at else "none yet"),
        (
            "attempt began",
            card.started_at.astimezone().strftime("%m-%d %H:%M:%S") if card.started_at else "-",
        ),
        ("failure", card.failure.value if card.failure and card.failure.value not in NO_DEATH else "-"),
        ("what it is", card.summary or "-"),
        ("blind", card.blind or "no"),
        ("clock", skew_text(card.clock_skew_s) or "as here"),
        ("watched", "acts by the playbook" if card.is_acting else "only looked at"),
        ("next", next_text(card.next_act, now, acts=acts and card.is_acting) or "nothing"),
        ("rule", (card.next_act.rule or "-") if card.next_act else "-"),
        ("remark", card.remark or "-"),
        ("held by", card.holders or "-"),
    ]
    if row is not None:
        argv = row.spec.get("command") or row.spec.get("argv") or ()
        words = " ".join(map(str, argv)) if isinstance(argv, (list, tuple)) else str(argv)
        pairs += [
            ("playbook", row.playbook or "the default"),
            ("configuration", str(row.spec.get("config") or "-")),
            ("command", words or "the bundled trainer"),
            ("launched", row.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")),
        ]
    lines += [Text.assemble((f"{name:<16}", "bold"), plain(one_line(told, 2000))) for name, told in pairs]
    return [*lines, Text(), Text("GPUs", style="bold"), *gpu_lines(card, 120, utf8=utf8)]
