"""How a run ends from outside: signals, launchers, a person; and how ranks see each other go."""

from __future__ import annotations

from orchestrator.classify.signature import Signature, Where, sig
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass

FIRST: tuple[Signature, ...] = (
    sig(
        "failed_first",  # it repeats another rank's words, whatever they are; `ranks` reads it
        _F.NCCL_ERROR,
        ("failed first: ",),
        r"\brank -?\d+ \([\w-]+\) failed first: ",
        "warning: rank 1 (target) failed first: process 12: killed by SIGKILL, without a word of its own",
        role=Role.CASCADE,
    ),
    sig(
        "caught_in_worker",  # the worker's own traceback follows
        _F.PYTHON_EXCEPTION,
        ("caught ", "processraised", "checkpointexception"),
        r": Caught \w+ in (?:DataLoader worker process|pin memory thread|replica) "
        r"|\bProcessRaisedException\b|\bCheckpointException ranks:",
        "KeyError: Caught KeyError in DataLoader worker process 0.",
        where=Where.EXCEPTION,
        weak=True,
        generic=True,
    ),
)

# Weak ones are how a death looks from the outside: true of many, so they decide when nothing better is seen.
ENDS: tuple[Signature, ...] = (
    sig(
        "interrupted_by_hand",
        _F.KILLED_BY_USER,
        (
            *("interrupt", "death signal", "got signal", "cancelled at", "sigterm", "preempt", "scancel"),
            *("force terminated",),
        ),
        r"^KeyboardInterrupt\b|Received \S+ death signal|[Dd]etected KeyboardInterrupt"
        r"|SignalException: .*got signal: |CANCELLED AT \S+"
        r"|[Rr]eceived (?:signal )?SIG(?:TERM|INT|HUP|USR1)\b|[Pp]reempt(?:ed|ion) (?:notice|signal)"
        r"|DUE TO (?:PREEMPTION|TIME LIMIT)|srun: (?:sending Ctrl-C|Force Terminated)|\bAborted!$",
        "KeyboardInterrupt",
        certain=True,
    ),
    sig(
        "nccl_watchdog_timeout",
        _F.NCCL_TIMEOUT,
        ("watchdog", "timed out", "timeout", "barrier"),
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for (?:recv|send) operation"
        r"|Socket Timeout|wait timeout after \d+ ?ms|[Cc]ollective operation timed out"
        r"|DistStoreError: .*[Tt]imed? ?out"
        r"|ran for \d+ milliseconds before timing out|monitoredBarrier"
        r"|[Tt]imed out initializing process group"
        r"|RendezvousTimeoutError|Timeout waiting for key",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)",
        weak=True,
    ),
    sig(
        "nccl_last_error",  # the line after `Last error:`, which says what NCCL ran into
        _F.NCCL_ERROR,
        ("cuda failure", "call to", "socketprogress", "ibv_"),
        r"^Cuda failure '|^socket[A-Z]\w+: |^(?:Call to|ibv_)\w* ?.*failed",
        "socketProgressOpt: Call to recv from 192.0.2.21<33759> failed : Connection reset by peer",
        weak=True,
    ),
    sig(
        "peer_gone",
        _F.NCCL_ERROR,
        ("reset by peer", "closed by", "broken pipe"),
        r"^(?!.*NCCL).*(?:Connection reset by peer|Connection closed by (?:remote )?peer|Broken pipe)",
        "RuntimeError: [pair.cc:538] Read error [127.0.0.1]:6021: Connection reset by peer",
        role=Role.CASCADE,
    ),
    sig(
        "nccl_failed",
        _F.NCCL_ERROR,
        ("nccl", "distbackend", "ncclinvalid"),
        r"DistBackendError|NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error"
        r"|ncclInvalid(?:Usage|Argument)"
        r"|NCCL WARN .*(?:failed|Failed|closed|rror|[Tt]imed? ?out|Duplicate GPU|Cuda failure)"
        r"|NCCL communicator was aborted",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error",
        weak=True,
        generic=True,
    ),
    sig(
        "watchdog_stuck",
        _F.HANG,
        ("watchdog", "heartbeat"),
        r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out|ProcessGroupNCCL watchdog hang",
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        weak=True,
    ),
    sig(
        "launcher_table",
        _F.TORCHRUN_WRAPPER,
        (
            *("childfailed", "closing signal", "sigterm", "exitcode", "calledprocesserror"),
            *("exit code", "processexited"),
            *("killing subprocess", "return code", "non-zero exit", "non-zero status"),
        ),
        r"\bChildFailedError\b|closing signal SIG|Signal 15 \(SIGTERM\)|exitcode\s*: -15\b"
        r"|CalledProcessError: .*non-zero exit status"
        r"|srun: error: \S+ tasks? [\d,-]+: Exited with exit code"
        r"|\[launch\.py:\d+:\w+\] (?:Killing subprocess|\[.*\] exits with return code = [1-9])"
        r"|exits with return code = [1-9]"
        r"|ProcessExitedException: process \d+ terminated with exit code"
        r"|process returned a non-zero exit code|exited with non-zero status",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        role=Role.CASCADE,
    ),
    sig(
        "launcher_row",
        _F.TORCHRUN_WRAPPER,
        ("exitcode",),
        r"exitcode\s*: [1-9]\d*\b",
        "  exitcode  : 1 (pid: 69812)",
        role=Role.CASCADE,
    ),
    sig(
        "heap_corrupt",  # glibc's last words before it aborts the process
        _F.SIGNAL_EXIT,
        ("free()", "malloc()", "realloc()", "double free", "corrupted", "munmap_chunk", "stack smashing"),
        r"^(?:double free or corruption|(?:free|malloc|realloc)\(\): |munmap_chunk\(\): "
        r"|corrupted (?:size vs|double-linked)|\*\*\* stack smashing detected)",
        "free(): double free detected in tcache 2",
        weak=True,
    ),
    sig(
        "died_of_signal",
        _F.SIGNAL_EXIT,
        (
            *("exitcode", "signal", "fault", "abort", "fatal", "killed", "bus error", "terminate", "hangup"),
            *("died with", "return code = -", "illegal instruction", "floating point", "core dumped"),
        ),
        r"exitcode\s*: -\d+|Signal \d+ \(SIG[A-Z]+\) received|Segmentation fault"
        r"|\bAborted(?: \(core dumped\))?$|return code = -\d+|died with <Signals\.SIG\w+"
        r"|Fatal Python error: |^Killed(?: +\S.*)?$|^Bus error|^Terminated$|^Hangup$"
        r"|terminate called after throwing"
        r"|: (?:Killed|Aborted|Bus error)(?: \(core dumped\))?$|: task \d+: (?:Killed|Aborted"
        r"|Segmentation fault)"
        r"|\(core dumped\)$|terminated with signal SIG\w+|exited on signal \d+|is killed by signal: \w+"
        r"|Caught signal \d+ \((?:Segmentation fault|Aborted|Bus error)|\bline \d+: +\d+ (?:Killed|Aborted"
        r"|Terminated)\b",
        "Segmentation fault (core dumped)",
        weak=True,
    ),
)
