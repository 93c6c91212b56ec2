"""From the guest's `checkup` and the host's words to readings. Pure; what is malformed is not known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orchestrator.doctor.readings import NOT_ASKED, Card, Container, HostFacts, Inside, Node, Skew, Torch
from orchestrator.observe.host import parse_status
from orchestrator.terminal import one_line
from orchestrator.types.seen import Blind, Present, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMIT = 300


def inside(said: Mapping[str, Any]) -> Inside:
    """Return what the guest's answer says; a field that is not what it should be is None."""
    room, gpu = _object(said.get("memory")), _object(said.get("gpu"))
    return Inside(
        uid=_count(said.get("uid")),
        locale=_flag(said.get("locale")),
        state_dir=_text(said.get("state_dir")) or "",
        free_bytes=_count(said.get("free_bytes")),
        total_bytes=_count(said.get("total_bytes")),
        shm_free_bytes=_count(said.get("shm_free_bytes")),
        shm_total_bytes=_count(said.get("shm_total_bytes")),
        has_shm=_flag(said.get("has_shm")),
        memory_limit_bytes=_count(room.get("limit_bytes")),
        memory_free_bytes=_count(room.get("free_bytes")),
        memory_told=room.get("told") is True,
        oom_kills=_count(said.get("oom_kills")),
        open_files=_count(said.get("open_files")),
        processes=_count(said.get("processes")),
        now=_number(said.get("now")),
        nodes=_nodes(gpu.get("nodes")),
        module=_text(gpu.get("module")),
        library=_text(gpu.get("library")),
        driver_cuda=_cuda(_count(gpu.get("cuda"))),
        nvml_problem=_text(gpu.get("problem")),
        has_driver=None if gpu.get("source") is None else gpu["source"] != "none",
        cards=_cards(gpu),
        trainer_python=_text(said.get("trainer_python")),
        torch=_torch(said.get("torch")),
    )


def skew(said: Mapping[str, Any], asked_at: float, answered_at: float) -> Skew | None:
    """Return how far the clocks are apart; the way of the answer is at most what the asking took beside."""
    now, took = _number(said.get("now")), _number(said.get("took_s"))
    if now is None or took is None:
        return None
    within = max(0.0, answered_at - asked_at - took) / 2
    return Skew(seconds=now + within - answered_at, within_s=within)


def host(text: str) -> HostFacts:
    """Return what the host's script printed: a word and its value a line."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        said[word] = one_line(value, _LIMIT).strip()
    uid = said.get("uid", "")
    module = re.search(r"\d{3}\.\d+(?:\.\d+)*", said.get("module", ""))
    return HostFacts(
        uid=int(uid) if uid.isdigit() else None,
        user=said.get("user") or None,
        pct=said.get("pct") or None,
        pct_version=said.get("pct-version") or None,
        module=module[0] if module else None,
        devices=tuple(said.get("devices", "").split()),
    )


def container(pct_status: str, lxc_info: str) -> Container:
    """Return what `pct status --verbose` and `lxc-info -s` say together."""
    lock = re.search(r"^lock:\s*(\S+)", pct_status, re.MULTILINE)
    state = parse_status(pct_status, "")
    told = re.search(r"State:\s*(\w+)", lxc_info)
    memory = re.search(r"^maxmem:\s*(\d{1,18})$", pct_status, re.MULTILINE)
    return Container(
        status="running" if (state or "").startswith("locked:") else state,
        lock=lock[1] if lock else None,
        is_frozen=told[1] in ("FROZEN", "FREEZING") if told else None,
        memory_bytes=int(memory[1]) if memory else None,
    )


def _object(value: Any) -> Mapping[str, Any]:  # noqa: ANN401
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:  # noqa: ANN401
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:  # noqa: ANN401
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:  # noqa: ANN401
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


def _flag(value: Any) -> bool | None:  # noqa: ANN401
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:  # noqa: ANN401
    return one_line(value, _LIMIT) if isinstance(value, str) and value else None


def _cuda(version: int | None) -> tuple[int, int] | None:
    """NVML says 12080 for 12.8."""
    return None if version is None or version <= 0 else (version // 1000, version % 1000 // 10)


def _nodes(value: Any) -> tuple[Node, ...] | None:  # noqa: ANN401
    if not isinstance(value, list):
        return None
    rows = [_object(row) for row in value]
    return tuple(
        Node(name=name, is_current=_flag(row.get("current")), error=_text(row.get("error")))
        for row in rows
        if (name := _text(row.get("name"))) is not None
    )


def _cards(gpu: Mapping[str, Any]) -> tuple[Card, ...] | None:
    if not isinstance(gpu.get("gpus"), list) or gpu.get("source") is None:
        return None
    rows = [_object(row) for row in gpu["gpus"]]
    return tuple(_card(row, index) for row in rows if (index := _count(row.get("index"))) is not None)


def _card(row: Mapping[str, Any], index: int) -> Card:
    capability = [_count(part) for part in _list(row.get("capability"))]
    pids = [_count(_object(process).get("pid")) for process in _list(row.get("processes"))]
    is_known = len(capability) == 2 and None not in capability
    return Card(
        index=index,
        name=_text(row.get("name")),
        used_bytes=_count(row.get("memory_used_bytes")),
        total_bytes=_count(row.get("memory_total_bytes")),
        capability=(capability[0] or 0, capability[1] or 0) if is_known else None,
        pids=tuple(pid for pid in pids if pid is not None),
        recovery=_text(row.get("recovery")),
        remap_failed=_flag(row.get("remap_failed")),
        remap_pending=_flag(row.get("remap_pending")),
        problem=_text(row.get("problem")),
        cuda=_tried(_object(row.get("tried"))),
    )


def _tried(row: Mapping[str, Any]) -> Reading[str]:
    if isinstance(row.get("error"), str):
        return Present(one_line(row["error"], _LIMIT))
    reason = _text(row.get("reason"))
    return Blind(reason) if reason else NOT_ASKED


def _torch(value: Any) -> Torch | None:  # noqa: ANN401
    if not isinstance(value, dict):
        return None
    words = {key: tuple(filter(None, map(_text, _list(value.get(key))))) for key in ("arch", "lacks")}
    return Torch(
        python=_text(value.get("python")),
        version=_text(value.get("version")),
        cuda=_text(value.get("cuda")),
        hip=_text(value.get("hip")),
        arch=words["arch"],
        lacks=words["lacks"],
        error=_text(value.get("error")),
    )
