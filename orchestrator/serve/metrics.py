"""What Prometheus scrapes: made from the fleet as it is at that instant, nothing is counted here twice."""

from __future__ import annotations

import math
import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orchestrator import __version__
from orchestrator.report.attempts import is_death
from orchestrator.serve.texts import finite, line
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from orchestrator.fleet import RunCard
    from orchestrator.serve.parts import Parts

RUN = ("run", "target")
SETTLE_S = 15.0


class _Past(NamedTuple):
    """What the record said of a run's attempts when it was in that state."""

    key: tuple[int | None, RunState]
    again_at: float  # monotonic
    num_attempts: int
    deaths: Counter[str]


class Exposition:
    """Answers scrapes from a registry of its own."""

    def __init__(self, parts: Parts) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(FleetCollector(parts))

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return what is scraped and its content type."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type


class FleetCollector(Collector):
    """All metrics of one fleet."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._past: dict[int, _Past] = {}
        self._lock = threading.Lock()  # scrapes may come at once

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before it is asked."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all its runs."""
        cards = self._parts.hub.board.fleet.cards
        yield from self._of_service()
        yield from self._of_runs(cards)
        yield from self._of_history(cards)
        yield from _of_gpus(cards)

    def _of_service(self) -> Iterator[Metric]:
        parts = self._parts
        health = parts.health()
        turned_at = parts.fleet.turned_at
        age_s = parts.clock.monotonic() - turned_at if turned_at is not None else float("inf")
        info = InfoMetricFamily("dflash_service", "The service itself.")
        info.add_metric([], {"version": __version__, "acting": str(parts.acting).lower()})
        yield info
        yield _gauge(
            "dflash_watch_well",
            "1 if the watch runs, sees every run, and acts on each.",
            float(health.is_well),
        )
        yield _gauge("dflash_watch_turn_age_seconds", "Since the watch's last turn.", age_s)
        yield _gauge("dflash_stream_readers", "Who follows the stream.", float(parts.hub.num_readers))

    def _of_runs(self, cards: Iterable[RunCard]) -> Iterator[Metric]:
        state = GaugeMetricFamily("dflash_run_state", "1 for the state a run is in.", labels=(*RUN, "state"))
        numbers = {name: GaugeMetricFamily(name, words, labels=RUN) for name, words in _NUMBERS.items()}
        info = InfoMetricFamily("dflash_run", "A run's phase and failure.", labels=RUN)
        now = self._parts.clock.now()
        for card in cards:
            labels = _labels(card)
            for each in RunState:
                state.add_metric([*labels, each.value], float(card.state is each))
            told = {"phase": card.phase or "", "failure": card.failure.value if card.failure else ""}
            info.add_metric(labels, told)
            for name, value in _values(card, now).items():
                if (number := finite(value)) is not None:
                    numbers[name].add_metric(labels, number)
        yield state
        yield info
        yield from numbers.values()

    def _of_history(self, cards: Sequence[RunCard]) -> Iterator[Metric]:
        with self._lock:
            self._ask_record(cards)
            past = dict(self._past)
        attempts = CounterMetricFamily("dflash_run_attempts", "Attempts of a run.", labels=RUN)
        deaths = CounterMetricFamily(
            "dflash_run_deaths", "Attempts that ended without success, by class.", labels=(*RUN, "failure")
        )
        for card in cards:
            mine = past[card.id]
            attempts.add_metric(_labels(card), mine.num_attempts)
            for failure, num in sorted(mine.deaths.items()):
                deaths.add_metric([*_labels(card), failure], num)
        yield attempts
        yield deaths

    def _ask_record(self, cards: Sequence[RunCard]) -> None:
        """Ask for a run's attempts when its state changed, and once more when that is surely on record."""
        ticks = self._parts.clock.monotonic()
        for card in cards:
            key, known = (card.attempt, card.state), self._past.get(card.id)
            if known is None or known.key != key:
                self._past[card.id] = self._read(card.id, key, ticks + SETTLE_S)
            elif ticks >= known.again_at:
                self._past[card.id] = self._read(card.id, key, math.inf)
        for run_id in self._past.keys() - {card.id for card in cards}:
            del self._past[run_id]

    def _read(self, run_id: int, key: tuple[int | None, RunState], again_at: float) -> _Past:
        rows = self._parts.record.attempts(run_id)
        ends = Counter(row.failure.value if row.failure else "ended" for row in rows if is_death(row))
        return _Past(key, again_at, len(rows), ends)


_NUMBERS = {
    "dflash_run_step": "The newest step.",
    "dflash_run_steps_planned": "The last step of the plan.",
    "dflash_run_loss": "The newest training loss, nats a token.",
    "dflash_run_tokens_per_second": "Throughput.",
    "dflash_run_step_seconds": "The median time of a step.",
    "dflash_run_eta_seconds": "To the last step at the present speed.",
    "dflash_run_checkpoint_step": "The newest complete checkpoint.",
    "dflash_run_attempt": "The newest attempt's number.",
    "dflash_run_look_age_seconds": "Since the last good look.",
    "dflash_run_step_age_seconds": "Since a new step or phase was last seen, of a run that lives.",
    "dflash_run_blind": "1 if nothing can be seen of it.",
    "dflash_run_attempts_left": "Relaunches left for the present cause.",
    "dflash_run_clock_skew_seconds": "The container's clock less the one here.",
}


def _values(card: RunCard, now: datetime) -> dict[str, float | None]:
    lives = card.state is RunState.HEALTHY and card.blind is None and not card.has_ended
    moved_s = max(0.0, (now - card.moved_at).total_seconds()) if lives and card.moved_at is not None else None
    left = card.next_act.attempts_left if card.next_act is not None else None
    return {
        "dflash_run_step": card.step,
        "dflash_run_steps_planned": card.total_steps,
        "dflash_run_loss": card.loss,
        "dflash_run_tokens_per_second": card.tokens_per_s,
        "dflash_run_step_seconds": card.step_s,
        "dflash_run_eta_seconds": card.eta_s,
        "dflash_run_checkpoint_step": card.checkpoint_step,
        "dflash_run_attempt": card.attempt,
        "dflash_run_look_age_seconds": card.age_s(now),
        "dflash_run_step_age_seconds": moved_s,
        "dflash_run_blind": float(card.blind is not None),
        "dflash_run_attempts_left": left,
        "dflash_run_clock_skew_seconds": card.clock_skew_s,
    }


def _of_gpus(cards: Iterable[RunCard]) -> Iterator[Metric]:
    """Yield the GPUs that each run may use, as its container sees them."""
    words = {
        "dflash_gpu_memory_used_bytes": "Memory in use.",
        "dflash_gpu_memory_total_bytes": "Memory there is.",
        "dflash_gpu_utilization_ratio": "Share of time in which a kernel ran, 0 to 1.",
        "dflash_gpu_power_watts": "Power drawn.",
        "dflash_gpu_temperature_celsius": "Temperature.",
    }
    found = {name: GaugeMetricFamily(name, text, labels=(*RUN, "gpu")) for name, text in words.items()}
    for card in cards:
        for each in card.gpus:
            gpu = each.gpu
            used = gpu.utilization_pct / 100 if gpu.utilization_pct is not None else None
            values = (gpu.memory_used_bytes, gpu.memory_total_bytes, used, gpu.power_w, gpu.temperature_c)
            for family, value in zip(found.values(), values, strict=True):
                if each.is_own and value is not None and (number := finite(value)) is not None:
                    family.add_metric([*_labels(card), str(gpu.index)], number)
    yield from found.values()


def _labels(card: RunCard) -> list[str]:
    return [line(card.name), line(card.target)]


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)
