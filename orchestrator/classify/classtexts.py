"""What is said of each class: how it is found, what confirms it, what it means, what it does not prove."""

from __future__ import annotations

from orchestrator.types.failure import FailureClass

_F = FailureClass
_LOG, _EXIT, _HISTORY = "its log", "its exit record", "several steps or attempts of the run"
_HOST = "the container and the host"

# found by, confirming readings, a sentence for the person, what a match does not prove
TEXTS: dict[FailureClass, tuple[str, tuple[str, ...], str, str]] = {
    _F.FX_TRACE_RACE: (
        _LOG,
        ("the traceback is of a thread that traces nothing itself", "the next attempt passes"),
        "One thread called a compiled function while another compiled; compile in turn, or a process a GPU.",
        "with the tracer's own frames in the same traceback it is a misuse that comes again, not the race",
    ),
    _F.OOM_DENSE_FALLBACK: (
        _LOG,
        ("the flex_attention warning before it", "frames of sdpa_dense or math_attention"),
        "Attention left its compiled kernel and built the whole score matrix; get it compiled again.",
        "a huge allocation alone does not prove it, and a small one does not rule it out",
    ),
    _F.OOM_CUDA: (
        _LOG,
        ("GPU memory near its total before the death",),
        "The GPU had no room for what was asked; ask for less, or free what another process holds.",
        "that this run is too large: another process may hold the card",
    ),
    _F.OOM_FRAGMENTATION: (
        _LOG,
        ("a tenth of the card or more reserved and not in use",),
        "The allocator held much memory in pieces; expandable segments join them.",
        "that the run would fit otherwise",
    ),
    _F.OOM_HOST: (
        _LOG,
        ("the kernel's OOM killer names the container's cgroup", "memory.events counts an oom_kill"),
        "The container ran out of memory; use fewer workers or give it more.",
        "SIGKILL alone: a person's kill -9 looks the same",
    ),
    _F.SHM_EXHAUSTED: (
        _LOG,
        ("/dev/shm is full or small",),
        "The loader's workers need more shared memory than /dev/shm has; enlarge it or use fewer workers.",
        "a bus error has other causes, a truncated file that is mapped among them",
    ),
    _F.COMPILE_ERROR: (
        _LOG,
        ("it comes at the same graph each time",),
        "A compiler, a header or a kernel's shape is wrong; mend it, and never run attention uncompiled.",
        "`out of resource` is about a kernel's shared memory, not about the GPU's memory",
    ),
    _F.RECOMPILE_LIMIT: (
        _LOG,
        ("the same function is named again and again",),
        "Shapes changed more often than compiled code allows; use fewer lengths, or raise the limit.",
        "that the run fails: it may go on, slower",
    ),
    _F.PYTHON_EXCEPTION: (
        _LOG,
        ("error.json has the same exception",),
        "An exception ended it that is none of the known kinds; its traceback says where.",
        "that it comes again: it may be the moment's data",
    ),
    _F.IMPORT_ERROR: (
        _LOG,
        ("the same import fails by hand",),
        "The environment lacks a module, or has one of another version; no relaunch installs it.",
        "that the module is missing: it may be built for another torch",
    ),
    _F.CONFIG_ERROR: (
        _LOG,
        ("it ends within seconds, before any step",),
        "The command or the configuration is wrong until a person corrects it.",
        "whose mistake it is",
    ),
    _F.IO_ERROR: (
        _LOG,
        ("the file is missing, short, or its checksum differs",),
        "Data or a checkpoint is missing or corrupt, and is so at the next start too.",
        "that the file is corrupt: a loader's new defaults refuse good files as well",
    ),
    _F.NAN_LOSS: (
        "its log and its metrics",
        ("losses in a row that are no numbers", "a loss of 0 beside a gradient norm of nan"),
        "The loss is no number any more; go back to a good checkpoint with another rate or precision.",
        "one step of nan under a loss scaler is no failure",
    ),
    _F.CUDA_ILLEGAL_ACCESS: (
        _LOG,
        ("Xid 13 or 31 in the host's kernel log",),
        "A kernel touched memory that is not its own; once may be chance, twice is a defect.",
        "the line that the traceback names: CUDA reports late",
    ),
    _F.CUDA_DEVICE_ASSERT: (
        _LOG,
        ("the assertion names block and thread",),
        "An index or a label is out of range; the same data bring it again.",
        "the line that the traceback names: CUDA reports late",
    ),
    _F.NCCL_TIMEOUT: (
        _LOG,
        ("stacks of every rank", "one rank has another sequence number than the rest"),
        "One rank did not come to a collective, and the others waited until the limit.",
        "that communication failed: the rank may hang in its own work, or have died earlier",
    ),
    _F.NCCL_ERROR: (
        _LOG,
        ("no earlier traceback in any rank", "the host's log names a link or a card"),
        "Communication between ranks failed, and no rank had a failure of its own before.",
        "that the network is at fault: a peer that crashed looks the same from the others",
    ),
    _F.HANG: (
        "its steps, its log, the GPUs and the container",
        ("no step for the phase's limit", "stacks of every rank that do not move"),
        "Nothing moved for the limit of its phase; stacks are kept, and it is ended and started again.",
        "utilization alone: 100 % is what a rank that waits shows, and 0 % what a checkpoint shows",
    ),
    _F.TORCHRUN_WRAPPER: (
        _LOG,
        (),
        "A rank failed, and only the launcher's table is to be seen; its own words stand further up.",
        "why the rank failed: the table's first rank may be a victim",
    ),
    _F.SIGNAL_EXIT: (
        f"{_EXIT}, or {_LOG}",
        ("a core dump", "the kernel's log"),
        "A signal ended it: a crash below Python, or something from outside.",
        "who sent the signal",
    ),
    _F.DISK_FULL: (
        _LOG,
        ("the disk has no room or no inodes", "the quota is used up"),
        "The disk is full; make room, and remove the checkpoint that was cut short.",
        "that it is full still: something may have been removed since",
    ),
    _F.CUDA_INIT: (
        _LOG,
        ("nvidia-smi fails in the container too",),
        "CUDA does not start: driver, build and the container's devices do not fit, or the card is taken.",
        "that the card is broken",
    ),
    _F.GPU_LOST: (
        f"{_LOG}, or the host's kernel log",
        ("Xid 79 in the host's kernel log", "NVML misses the card"),
        "A GPU is off the bus until the host is rebooted or the card reseated.",
        "corrected bus errors alone are harmless",
    ),
    _F.GPU_ECC: (
        f"{_LOG}, or the host's kernel log",
        ("Xid 48, 63, 64, 94 or 95", "NVML counts uncorrectable errors"),
        "The card's memory failed; it wants a reset or a replacement before anything trains on it.",
        "that the card is to be replaced: 63 and 94 want a reset only",
    ),
    _F.GPU_NVLINK: (
        f"{_LOG}, or the host's kernel log",
        ("Xid 74 or 144 to 150", "nvidia-smi nvlink shows a link that is down"),
        "The link between cards failed; it wants a reset or a look before anything trains on them.",
        "Xid 45 beside it is a consequence",
    ),
    _F.AUTH_ERROR: (
        _LOG,
        ("the same request by hand is refused",),
        "Access is refused until a person gives a token or accepts a licence.",
        "that the token is wrong: 401 is often no token at all, 403 a licence that was not accepted",
    ),
    _F.NETWORK_ERROR: (
        _LOG,
        ("the host cannot be reached from the container",),
        "Something on the network could not be reached; that often passes.",
        "retries that go on are no failure yet",
    ),
    _F.PORT_IN_USE: (
        _LOG,
        ("another process listens there",),
        "Another process holds the port, most often one of an attempt that was stopped.",
        "that the launcher failed: a second address of the same port may have been free",
    ),
    _F.PERMISSION_DENIED: (
        _LOG,
        ("the file's owner and mode",),
        "A file, a device or a port may not be used by this user.",
        "that it ended the run: a shell goes on after it",
    ),
    _F.KILLED_BY_USER: (
        f"{_LOG}, or the stop that was asked for",
        ("stop.json says by whom",),
        "A person, or a scheduler on behalf of one, ended it; it is left so.",
        "who it was",
    ),
    _F.INTERRUPTED: (
        _EXIT,
        ("a checkpoint of the same moment",),
        "Something from outside asked it to stop; it wrote a checkpoint and left.",
        "who asked",
    ),
    _F.CONTAINER_STOPPED: (
        _HOST,
        ("pct status",),
        "Its container is off; that is no crash of the run.",
        "why it was stopped",
    ),
    _F.CONTAINER_RESTARTED: (
        _HOST,
        ("pid 1 of the container is younger than the attempt",),
        "Its container was restarted under it; nothing is wrong with the run.",
        "that the run had not failed before",
    ),
    _F.CONTAINER_FROZEN: (
        _HOST,
        ("the lock says backup", "lxc-info says FROZEN"),
        "Its container is frozen, by a backup or a suspend; the run goes on with it.",
        "that the run hangs",
    ),
    _F.HOST_REBOOTED: (
        _HOST,
        ("another boot id", "an uptime shorter than the attempt"),
        "Its host was rebooted under it; nothing is wrong with the run.",
        "why the host was rebooted",
    ),
    _F.SESSION_LOST: (
        _HOST,
        ("the trainer's lock is held, and tmux has no session",),
        "Its tmux session is gone; the trainer lives, and is left alone.",
        "anything about the trainer",
    ),
    _F.TMUX_ERROR: (
        "a pane",
        ("the process is looked for by its lock",),
        "No tmux server or session answered as it should; the trainer may live all the same.",
        "that the run ended",
    ),
    _F.SSH_ERROR: (
        "a pane, or the connection",
        ("the next connection",),
        "The way to the host failed; nothing is known of the run until it is there again.",
        "anything about the run",
    ),
    _F.PCT_ERROR: (
        "a pane, or the connection",
        ("pct status",),
        "The container could not be entered; nothing is known of the run until it can be.",
        "that the container is off: a wrong number or another node says the same",
    ),
    _F.STRAGGLERS: (
        _HISTORY,
        ("step times by rank",),
        "Some ranks are slower than the rest, and all wait for them at every step.",
        "that a card is at fault: its data may be longer",
    ),
    _F.THROUGHPUT_REGRESSION: (
        _HISTORY,
        ("clocks, temperature and power of the GPUs",),
        "It became slower than it was on this very host.",
        "that it has to be relaunched: a slow run still trains",
    ),
    _F.CRASH_LOOP: (
        _HISTORY,
        ("the attempts with their causes",),
        "It dies again and again and no checkpoint advances; one more relaunch would be the same.",
        "that the causes are one",
    ),
    _F.NO_PROGRESS: (
        _HISTORY,
        ("the last step of each attempt",),
        "Its relaunches end at the same step; a person should look at what is there.",
        "that the data of that step are to blame",
    ),
    _F.RESUMED_FROM_ZERO: (
        _HISTORY,
        ("a complete checkpoint, and a first step of 0",),
        "It began anew though there is a checkpoint; a person decides which of the two is meant.",
        "that anything is lost yet",
    ),
    _F.COMPLETED: (
        f"{_EXIT} and its result",
        ("result.json",),
        "It is finished.",
        "that its numbers are good: a run of lost numbers ends with 0 too",
    ),
    _F.HEALTHY: (
        "its life and its steps",
        ("the heartbeat moves",),
        "It is alive and makes steps.",
        "that it is fast, or that it learns",
    ),
    _F.UNKNOWN: (
        _EXIT,
        (),
        "It died, and nothing says why; read its log.",
        "that nothing was wrong with it",
    ),
}
