"""The catalogue: what a failure looks like in a log. Facts, typed and tested; what to do is a playbook's.

A signature is a named pattern. `weak` ones decide only when nothing stronger was seen: they are how a death
looks from the outside (NCCL, a launcher's table of exit codes, a bare mention in a sentence).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from orchestrator.types import FailureClass, Role


class Where(str, Enum):
    """Where a signature may match."""

    EXCEPTION = "exception"  # the text of an exception: its last line, or the lines that continue it
    LINE = "line"  # any line, exceptions included


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One known face of one failure class.

    One of `words` (lower case) is in every line that it matches: a cheap look before the pattern.
    `example` is such a line; a test holds both to it.
    """

    name: str
    failure: FailureClass
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    example: str
    where: Where = Where.LINE
    role: Role = Role.ROOT
    weak: bool = False


def _sig(
    name: str,
    failure: FailureClass,
    words: tuple[str, ...],
    pattern: str,
    example: str,
    *,
    where: Where = Where.LINE,
    role: Role = Role.ROOT,
    weak: bool = False,
) -> Signature:
    compiled = re.compile(pattern)
    return Signature(
        name=name,
        failure=failure,
        words=words,
        pattern=compiled,
        example=example,
        where=where,
        role=role,
        weak=weak,
    )


_F = FailureClass
_EXC = Where.EXCEPTION

# The first match wins, so names that lie come before the names they lie about: `OutOfMemoryError: out of
# resource` is a compile error, and a shared-memory file without space is no full disk.
SIGNATURES: tuple[Signature, ...] = (
    _sig(
        "failed_first",  # it repeats another rank's words, whatever they are; `ranks` reads it
        _F.NCCL_ERROR,
        ("failed first: ",),
        r"\brank -?\d+ \([\w-]+\) failed first: ",
        "warning: rank 1 (target) failed first: process 12: killed by SIGKILL, without a word of its own",
        role=Role.CASCADE,
    ),
    _sig(
        "fx_symbolic_trace",
        _F.FX_TRACE_RACE,
        ("using fx",),
        r"using FX to symbolically trace",
        "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.",
    ),
    _sig(
        "fx_subgraph_race",
        _F.FX_TRACE_RACE,
        ("subgraph",),
        r"LoweringException: AttributeError: 'Subgraph' object has no attribute",
        "InductorError: LoweringException: AttributeError: 'Subgraph' object has no attribute 'dtype'",
        where=_EXC,
    ),
    _sig(
        "recompile_limit_hit",
        _F.RECOMPILE_LIMIT,
        ("hit config",),
        r"hit config\.(?:recompile_limit|cache_size_limit|accumulated_\w+_limit)",
        "torch._dynamo hit config.recompile_limit (8)",
        role=Role.PREDICTION,
    ),
    _sig(
        "flex_unfused",
        _F.OOM_DENSE_FALLBACK,
        ("without torch.compile",),
        r"flex_attention called without torch\.compile",
        "UserWarning: flex_attention called without torch.compile() - this will use an unfused path",
        role=Role.PREDICTION,
    ),
    _sig(
        "recompile_limit_raised",
        _F.RECOMPILE_LIMIT,
        ("limit", "detected recompile"),
        r"FailOnRecompileLimitHit|CacheLimitExceeded|Dynamo recompile limit exceeded"
        r"|Detected recompile when torch\.compile stance is",
        "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True.",
        where=_EXC,
    ),
    _sig(
        "compile_failed",
        _F.COMPILE_ERROR,
        ("compil", "inductorerror", "triton", "ptxas", "lowering", "dynamoerror"),
        r"BackendCompilerFailed|InductorError|NoTritonConfigsError|No valid triton configs|PTXASError"
        r"|InvalidCxxCompiler|CppCompileError|LoweringException|InternalTorchDynamoError",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        where=_EXC,
    ),
    _sig(
        "no_compiler",
        _F.COMPILE_ERROR,
        ("c compiler", "out of resource", "ptxas"),
        r"Failed to find C compiler|out of resource: |Triton Error \[CUDA\]: out of resource"
        r"|ptxas\S* (?:fatal|error)",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ),
    _sig(
        "shared_memory",
        _F.PYTHON_EXCEPTION,
        ("shm", "bus error", "mmap"),
        r"unable to allocate shared memory\(shm\)|Unexpected bus error encountered in worker"
        r"|unable to mmap \d+ bytes from file </torch_",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device",
    ),
    _sig(
        "dense_refused",
        _F.OOM_DENSE_FALLBACK,
        ("denseattentionrefused",),
        r"DenseAttentionRefused",
        "trainer.errors.DenseAttentionRefused: dense attention would take 284 GiB",
        where=_EXC,
    ),
    _sig(
        "cuda_oom",
        _F.OOM_CUDA,
        ("memory", "alloc_failed"),
        r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|\bOutOfMemoryError\b",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB.",
    ),
    _sig(
        "loader_killed",
        _F.OOM_HOST,
        ("dataloader",),
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed",
        "RuntimeError: DataLoader worker (pid 108439) is killed by signal: Killed.",
    ),
    _sig(
        "host_allocation",
        _F.OOM_HOST,
        ("memory", "bad_alloc"),
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|\bMemoryError\b"
        r"|\[Errno 12\] Cannot allocate memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
    ),
    _sig(
        "oom_killer",
        _F.OOM_HOST,
        ("oom", "out of memory", "out-of-memory"),
        r"oom-kill|oom_kill|[Oo]ut of memory: Killed process|out-of-memory handler|task \d+: Out Of Memory",
        "kernel: Out of memory: Killed process 3309 (python3) total-vm:812345kB",
        role=Role.CONFIRMATION,
    ),
    _sig(
        "disk_full",
        _F.DISK_FULL,
        (
            "no space",
            "errno 28",
            "quota",
            "writing",
            "iostream",
            "unexpected pos",
            "read-only",
            "cannot be opened",
        ),
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|PytorchStreamWriter failed writing"
        r"|basic_ios::clear: iostream error|unexpected pos \d+ vs \d+|Read-only file system"
        r"|^RuntimeError: File \S+ cannot be opened",
        "OSError: [Errno 28] No space left on device: 'checkpoints/step-300/model.safetensors'",
    ),
    _sig(
        "corrupt_file",
        _F.IO_ERROR,
        (
            "reader failed",
            "deserializing",
            "central directory",
            "weights only",
            "ran out of input",
            "corrupt",
        ),
        r"PytorchStreamReader failed|Error while deserializing header|failed finding central directory"
        r"|Weights only load failed|EOFError: Ran out of input|CheckpointCorrupt",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        where=_EXC,
    ),
    _sig(
        "missing_file",
        _F.IO_ERROR,
        ("filenotfound", "datainvalid"),
        r"FileNotFoundError: |DataInvalid",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_00020.pt'",
        where=_EXC,
    ),
    _sig(
        "nonfinite_raised",
        _F.NAN_LOSS,
        ("finite", "loss is", "loss scale"),
        r"NonFinite|[Ll]oss is (?:nan|inf|not finite)|non-?finite (?:loss|grad)"
        r"|Current loss scale already at minimum",
        "trainer.errors.NonFinite: the loss is nan at step 120",
        where=_EXC,
    ),
    _sig(
        "import_failed",
        _F.IMPORT_ERROR,
        ("import", "module", "packagenotfound", "undefined symbol", "shared object"),
        r"ModuleNotFoundError|\bImportError\b|PackageNotFoundError|undefined symbol: "
        r"|cannot open shared object file|python[\d.]*: No module named",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    _sig(
        "bad_usage",
        _F.CONFIG_ERROR,
        ("error: ", "open file", "not found", "configinvalid", "missingconfig"),
        r": error: (?:unrecognized arguments|argument |the following arguments are required|invalid choice)"
        r"|can't open file '|: command not found|ConfigInvalid|MissingConfigException",
        "train.py: error: unrecognized arguments: --learning-rate 1e-4",
    ),
    _sig(
        "cuda_error",
        _F.PYTHON_EXCEPTION,
        ("cuda", "xid"),
        r"CUDA error: |cuda runtime error|CUDA-capable device|NVRM: Xid",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    _sig(
        "interrupted_by_hand",
        _F.KILLED_BY_USER,
        ("interrupt", "death signal", "got signal"),
        r"^KeyboardInterrupt\b|Received \d+ death signal|SignalException: .*got signal: ",
        "KeyboardInterrupt",
    ),
    _sig(
        "nccl_watchdog_timeout",
        _F.NCCL_TIMEOUT,
        ("watchdog", "timed out", "timeout"),
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for (?:recv|send) operation"
        r"|Socket Timeout|wait timeout after \d+ ?ms",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)",
        weak=True,
    ),
    _sig(
        "peer_gone",
        _F.NCCL_ERROR,
        ("reset by peer", "closed by", "broken pipe"),
        r"^(?!.*NCCL).*(?:Connection reset by peer|Connection closed by (?:remote )?peer|Broken pipe)",
        "RuntimeError: [pair.cc:538] Read error [127.0.0.1]:6021: Connection reset by peer",
        role=Role.CASCADE,
    ),
    _sig(
        "nccl_failed",
        _F.NCCL_ERROR,
        ("nccl", "distbackend"),
        r"DistBackendError|NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error|ncclInvalidUsage"
        r"|NCCL WARN .*(?:failed|Failed|closed|rror)",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error",
        weak=True,
    ),
    _sig(
        "watchdog_stuck",
        _F.HANG,
        ("watchdog", "heartbeat"),
        r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out",
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        weak=True,
    ),
    _sig(
        "launcher_table",
        _F.NCCL_ERROR,
        ("childfailed", "closing signal", "sigterm", "exitcode"),
        r"\bChildFailedError\b|closing signal SIG|Signal 15 \(SIGTERM\)|exitcode\s*: -15\b",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        role=Role.CASCADE,
    ),
    _sig(
        "died_of_signal",
        _F.SIGNAL_EXIT,
        ("exitcode", "signal", "fault", "abort", "fatal", "killed", "bus error", "terminate"),
        r"exitcode\s*: -\d+|Signal \d+ \(SIG[A-Z]+\) received|Segmentation fault"
        r"|\bAborted(?: \(core dumped\))?$"
        r"|Fatal Python error: |^Killed$|^Bus error|terminate called after throwing",
        "Segmentation fault (core dumped)",
        weak=True,
    ),
)

# One cheap look at a block of lines before any pattern. Lower case. Names of exceptions that hold none of
# these words come at the end of a traceback, whose lines are all read.
TRIGGERS: tuple[bytes, ...] = (
    *(b"error", b"exception", b"traceback", b"interrupt", b'file "', b"terminate called"),
    *(b"nan", b"kill", b"fault", b"abort", b"signal", b"exitcode", b"fatal"),
    *(b"watchdog", b"warn", b"dynamo"),
    *(b"failed first", b"of memory", b"no space", b"no module", b"not found", b"open file"),
)
