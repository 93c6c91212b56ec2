"""The catalogue holds what it promises: examples match, words and triggers lead to them."""

from __future__ import annotations

import pytest

from orchestrator.classify import LogScanner
from orchestrator.classify.catalog import SIGNATURES, Signature, Where
from orchestrator.classify.match import DENSE_OOM, UNKNOWN_EXCEPTION, match_exception, match_line
from orchestrator.types.failure import FailureClass, Role

EACH = pytest.mark.parametrize("signature", SIGNATURES, ids=lambda s: s.name)


@EACH
def test_the_example_is_matched_and_found_by_its_words(signature: Signature):
    assert signature.pattern.search(signature.example)
    assert any(word in signature.example.lower() for word in signature.words)
    assert all(word == word.lower() for word in signature.words)


@EACH
def test_the_example_is_what_a_reader_of_exceptions_finds_first(signature: Signature):
    assert match_exception(signature.example) is signature


@pytest.mark.parametrize("signature", [s for s in SIGNATURES if s.where is Where.LINE], ids=lambda s: s.name)
def test_no_plain_line_of_the_catalogue_is_passed_over_as_quiet(signature: Signature):
    assert match_line(signature.example) is signature
    scanner = LogScanner()
    quiet = "tokens 12\n" * 40
    scanner.feed(f"{quiet}{signature.example}\n{quiet}".encode(), 0)
    assert signature.name in [match.evidence.signature for match in scanner.reading().matches]


def test_names_are_unique():
    names = [signature.name for signature in SIGNATURES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "line",
    [
        "0 errors, 0 failed",
        "WARNING: 2 samples truncated (error=0)",
        "signal-to-noise ratio 12 dB",
        "killing time until the next epoch",
        "NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)",
        "enabling watchdog with a timeout of 600 s",
        "memory 12.3 GiB of 139.8 GiB",
        "import torch",
    ],
)
def test_healthy_words_match_nothing(line: str):
    assert match_line(line) is None


def test_an_out_of_memory_is_the_dense_path_only_by_its_frames():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 GiB."
    assert match_exception(text, '  File "flex_attention.py", line 282, in sdpa_dense') is DENSE_OOM
    assert match_exception(text, '  File "loss.py", line 4, in forward').failure is FailureClass.OOM_CUDA
    assert (
        match_exception(text, '  File "x.py", line 4, in my_sdpa_dense_layer').failure
        is FailureClass.OOM_CUDA
    )


def test_the_annotation_face_of_the_race_needs_its_frame():
    frame = '  File "/venv/torch/fx/traceback.py", line 300, in annotate'
    assert match_exception("KeyError: 'custom'", frame).failure is FailureClass.FX_TRACE_RACE
    assert match_exception("KeyError: 'custom'") is UNKNOWN_EXCEPTION
    assert match_exception("KeyError: 'customer'", frame) is UNKNOWN_EXCEPTION


def test_predictions_are_no_roots():
    predictions = {signature.name for signature in SIGNATURES if signature.role is Role.PREDICTION}
    assert predictions == {"flex_unfused", "recompile_limit_hit", "cuda_init_warned"}
