"""The target, decoding and the drafter's kept context, on a GPU."""

import dataclasses
import time

import pytest
import torch

from tests.torch.decoding_parts import document, make_drafting, make_target
from trainer.batch import pack
from trainer.blocks import spread_anchors
from trainer.config import TargetConfig
from trainer.decoding.draftsession import DraftSession, in_compute_type, propose_by_drafter
from trainer.decoding.greedy import decode_alone, decode_speculatively, require_same
from trainer.decoding.speed import measure_speed
from trainer.evaluation.acceptance import by_draft_sessions, verify_in_sessions, verify_masked
from trainer.target.api import TargetShape
from trainer.target.load import load_target, load_vocabulary
from trainer.target.own import TargetModel, frozen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),
]

SHAPE = TargetShape(
    vocab_size=260,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=4096,
)
TAPS = (1, 3)


@pytest.fixture(scope="module")
def target():
    return make_target(SHAPE, std=0.08)


def on_gpu(model: TargetModel, dtype: torch.dtype) -> TargetModel:
    copied = TargetModel(model.shape)
    copied.load_state_dict(model.state_dict())
    return frozen(copied.to("cuda", dtype))


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_packed_documents_are_seen_as_on_the_cpu(target, dtype, bound):
    batch = pack([[document(700, 1), document(300, 2)], [document(900, 3)]], 1024)
    there = on_gpu(target, dtype).observe(batch.to("cuda"), TAPS, last=True)
    here = target.observe(batch, TAPS, last=True)
    assert there.last is not None
    assert here.last is not None
    assert relative(there.taps, here.taps) < bound
    assert relative(there.last, here.last) < bound
    assert not there.taps[1, 900:].any()


def test_observing_a_long_row_makes_no_score_matrix(target):
    model = on_gpu(target, torch.bfloat16)
    batch = pack([[document(40_000, 1)]], 40_000).to("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.observe(batch, TAPS, last=False)
    scores = 4 * SHAPE.num_attention_heads * 40_000**2
    assert torch.cuda.max_memory_allocated() - before < scores / 10


def test_a_session_in_float64_speculates_token_for_token(target):
    model = on_gpu(target, torch.bfloat16)
    drafting = drafting_on(model)
    prompt = document(50, 3).tokens.tolist()
    alone = decode_alone(model, prompt, 40)
    together = decode_speculatively(
        model, drafting.tap_layers, prompt, 40, propose_by_drafter(in_compute_type(drafting))
    )
    require_same(alone, together, "the drafter")


def drafting_on(model):
    """The drafter of the tests, on the GPU in bfloat16."""
    drafting = make_drafting(model)
    return dataclasses.replace(drafting, draft=drafting.draft.to("cuda"), dtype=torch.bfloat16)


@pytest.mark.parametrize("draft", [{}, {"sliding_layers": 1, "sliding_window": 16}], ids=str)
def test_kept_context_gives_the_logits_of_a_whole_run_in_float32(target, draft):
    """Against the CPU's masked form, which the tests there hold it equal to."""
    model = on_gpu(target, torch.float32)
    cpu = make_drafting(target, **draft)
    gpu = dataclasses.replace(make_drafting(target, **draft), vocabulary=model)
    gpu.draft.to("cuda")
    text = document(60, 7)
    taps = target.observe(pack([[text]], 60), cpu.tap_layers, last=False).taps[0]
    sessions = DraftSession(cpu), DraftSession(gpu)
    for session, context in zip(sessions, (taps[:40], taps[:40].cuda()), strict=True):
        session.extend(context)
    found = [session.logits(int(text.tokens[40])) for session in sessions]
    assert relative(found[1], found[0]) < 1e-3


def test_masked_verification_on_the_gpu_gives_the_sessions_tokens(target):
    model = on_gpu(target, torch.float32)
    drafting = drafting_on(model)
    batch = pack([[document(300, 1), document(200, 2)], [document(400, 3)]], 512).to("cuda")
    seen, cache = model.read(batch, drafting.tap_layers, last=True)
    anchors = spread_anchors(batch, 24, 4)
    proposed = by_draft_sessions(drafting)(batch, seen.taps, anchors)
    masked = verify_masked(model, batch, cache, anchors, proposed)
    in_sessions = verify_in_sessions(model, batch, anchors, proposed)
    same = (masked == in_sessions)[anchors.keep].float().mean()
    assert same > 0.99  # float32: a near-tie may fall otherwise


def test_speed_is_measured_on_the_gpu(target):
    model = on_gpu(target, torch.bfloat16)
    prompts = [document(64, seed).tokens.tolist() for seed in (1, 2)]
    speed = measure_speed(drafting_on(model), model, prompts, 64)
    print(speed.as_json())
    assert speed.alone_tokens_per_s > 20


def test_a_random_qwen3_8b_is_made_in_a_minute_and_sees_a_long_document():
    pytest.importorskip("transformers")
    config = TargetConfig(path="qwen3-8b", weights="random", mask_token=151669)
    started = time.perf_counter()
    model = load_target(config, "cuda", torch.bfloat16)
    torch.cuda.synchronize()
    made = time.perf_counter() - started
    vocabulary = load_vocabulary(config, "cuda", torch.bfloat16)
    assert torch.equal(vocabulary.head, model.head)
    assert torch.equal(vocabulary.embedding, model.embedding)
    batch = pack([[document(40_000, 1)]], 40_000).to("cuda")
    model.observe(batch, (1, 9, 17, 25, 33), last=False)
    torch.cuda.synchronize()
    started = time.perf_counter()
    seen = model.observe(batch, (1, 9, 17, 25, 33), last=False)
    torch.cuda.synchronize()
    print(f"made in {made:.1f} s; 40,000 tokens observed in {time.perf_counter() - started:.2f} s")
    print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    assert seen.taps.isfinite().all()
    assert made < 60


def test_a_directory_is_loaded_onto_the_gpu_as_onto_the_cpu(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=260,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    source = TargetConfig(path=str(tmp_path), mask_token=256)
    batch = pack([[document(50, 1), document(30, 2)]], 96)
    here = load_target(source, "cpu", torch.float32).observe(batch, TAPS, last=True)
    model = load_target(source, "cuda", torch.float32)
    there = model.observe(batch.to("cuda"), TAPS, last=True)
    assert model.device.type == "cuda"
    assert relative(there.taps, here.taps) < 1e-3
    prompt = document(20, 3).tokens.tolist()
    logits, _ = model.session(TAPS, exact=True).run(prompt)
    assert logits.dtype == torch.float64
