"""What really goes wrong on a GPU is named by the text that it really leaves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from orchestrator.replay.judge import judge_log  # noqa: E402 - only where there is torch
from tests.cli import ROOT  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ONE = {
    "device_assert": "cuda_device_assert",
    "illegal_access": "cuda_illegal_access",
    "oom_cuda": "oom_cuda",
    "oom_backward": "oom_cuda",
    "oom_beside_another": "oom_cuda",
    "oom_fragmentation": "oom_fragmentation",
    "oom_dense": "oom_dense_fallback",
    "cublas_init": "oom_cuda",
    "no_such_gpu": "cuda_init",
    "compile_resources": "compile_error",
    "worker_raises": "python_exception",
    "compile_race": "fx_trace_race",
}
TWO = {
    "nccl_timeout": "nccl_timeout",
    "nccl_raise": "python_exception",
    "nccl_kill": "oom_host",
    "nccl_oom": "oom_cuda",
    "nccl_assert": "cuda_device_assert",
    "nccl_same_gpu": "nccl_error",
}


def fail(name: str, folder: Path, ranks: int = 1) -> tuple[int, bytes]:
    """Let it fail; return its exit status as a shell tells it, and its output. `KEEP_LOGS` keeps a copy."""
    how = ["-m", "tests.gpu.failing", name]
    if ranks > 1:
        how = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *how]
    environ = {**os.environ, "FAILING_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, *how], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=ROOT, env=environ, timeout=240, check=False,
    )  # fmt: skip
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    if keep := os.environ.get("KEEP_LOGS"):
        Path(keep).mkdir(parents=True, exist_ok=True)
        (Path(keep) / f"{name}.{code}.txt").write_bytes(done.stdout)
    return code, done.stdout


@pytest.mark.parametrize("name", ONE)
def test_a_real_failure_is_named(name, tmp_path):
    code, log = fail(name, tmp_path)
    judged = judge_log(log, exit_status=code, width=None)
    assert judged.failure.value == ONE[name], log[-4000:].decode(errors="replace")
    assert judged.diagnosis.state.value == "dead"


def test_a_survived_out_of_memory_is_no_failure(tmp_path):
    code, log = fail("oom_survived", tmp_path)
    judged = judge_log(log, exit_status=None, width=None)
    assert code == 0
    assert judged.failure.value == "healthy", log[-4000:].decode(errors="replace")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("name", TWO)
def test_a_real_failure_of_two_ranks_is_named_by_its_root(name, tmp_path):
    code, log = fail(name, tmp_path, ranks=2)
    judged = judge_log(log, exit_status=code, width=None)
    assert judged.failure.value == TWO[name], log[-6000:].decode(errors="replace")
