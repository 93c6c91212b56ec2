"""Memory and disk: of the GPU, of the container, /dev/shm, and files that are full, missing or corrupt."""

from __future__ import annotations

from orchestrator.classify.signature import Signature, Where, sig
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass
_EXC = Where.EXCEPTION
_DATA = r"(?!\S*\.(?:ya?ml|toml|cfg|ini|sh|py|conf|j2)\b)"

# A shared-memory file without space is no full disk, and a worker of a loader that was killed no network.
MEMORY: tuple[Signature, ...] = (
    sig(
        "shared_memory",
        _F.SHM_EXHAUSTED,
        ("shm", "bus error", "shared memory", "/torch_", "sigbus"),
        r"unable to (?:allocate|open|write to|resize) shared memory"
        r"|[Uu]nexpected bus error encountered in worker"
        r"|unable to mmap \d+ bytes from file </torch_|insufficient shared memory"
        r"|is killed by signal: Bus error"
        r"|unable to write to file </torch_|(?:No space left on device|[Nn]o such file).*/dev/shm/"
        r"|/dev/shm/\S*.*No space left on device"
        r"|Error while creating shared memory segment|Signal 7 \(SIGBUS\) received",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device",
        certain=True,
    ),
    sig(
        "dense_refused",
        _F.OOM_DENSE_FALLBACK,
        ("denseattentionrefused",),
        r"DenseAttentionRefused",
        "trainer.errors.DenseAttentionRefused: dense attention would take 284 GiB",
        where=_EXC,
    ),
    sig(
        "loader_killed",
        _F.OOM_HOST,
        ("dataloader", "worker", "object repr", "processpool", "ray."),
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: Killed"
        # With its worker killed and its standard error gone, Python can only dump the exception as an object.
        r"|object repr\s*: ConnectionResetError"
        r"|ray\.exceptions\.OutOfMemoryError|worker\(s\) were killed due to the node running low on memory",
        "RuntimeError: DataLoader worker (pid 108439) is killed by signal: Killed.",
        certain=True,
    ),
    sig(
        "loader_exited",
        _F.OOM_HOST,
        ("exited unexpectedly", "terminated abruptly"),
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly"
        r"|was terminated abruptly while the future",
        "RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        weak=True,
    ),
    sig(
        "oom_killer",
        _F.OOM_HOST,
        ("oom", "out of memory", "out-of-memory", "memory limit"),
        r"oom[-_ ]kill|OOM[- ]?[Kk]ill|[Oo]ut of memory: Kill(?:ed)? process|out-of-memory handler"
        r"|task \d+: Out Of Memory|[Mm]emory cgroup out of memory|[Ee]xceeded (?:job |step )?memory limit",
        "kernel: Out of memory: Killed process 3309 (python3) total-vm:812345kB",
        role=Role.CONFIRMATION,
        certain=True,
    ),
    sig(
        "cuda_oom",
        _F.OOM_CUDA,
        ("memory", "alloc_failed", "executable batch size", "resource_exhausted"),
        r"(?:CUDA|HIP|XPU) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED"
        # As an exception's name, not within a sentence, which may be about another program.
        r"|(?:^|::|(?<!java\.lang)\.)OutOfMemoryError(?::|$)|NVML_ERROR_INSUFFICIENT_MEMORY"
        r"|No executable batch size found|RESOURCE_EXHAUSTED: ",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 158.00 MiB.",
    ),
    sig(
        "host_allocation",
        _F.OOM_HOST,
        ("memory", "bad_alloc", "enomem"),
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
        r"|\b_?(?:Array)?MemoryError\b"
        r"|(?:\[Errno 12\] |fork: .*|: )Cannot allocate memory|\[enforce fail at alloc_cpu"
        r"|Cannot allocate memory \(os error 12\)|could not allocate \d+ bytes of (?:host|pinned)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
    ),
)

FILES: tuple[Signature, ...] = (
    sig(
        "disk_full",
        _F.DISK_FULL,
        (
            *("no space", "errno 28", "quota", "writing", "iostream", "unexpected pos", "read-only"),
            *("os error 28", "requested and", "disk is full", "disk full", "enospc", "write failed"),
            *("file too large",),
            *("disk space",),
        ),
        r"No space left on device|\[Errno (?:28|122|27|30)\]|[Dd]isk quota exceeded"
        r"|PytorchStreamWriter failed writing"
        r"|file write failed|basic_ios::clear: iostream error|unexpected pos \d+ vs \d+|Read-only file system"
        r"|database or disk is full|\bENOSPC\b|os error 28|File too large|\d+ requested and \d+ written"
        r"|[Nn]ot enough (?:free )?disk space",
        "OSError: [Errno 28] No space left on device: 'checkpoints/step-300/model.safetensors'",
    ),
    sig(
        "cannot_write",
        _F.DISK_FULL,
        ("cannot be opened",),
        r"^RuntimeError: (?:File|Parent directory) \S+ (?:cannot be opened|does not exist)",
        "RuntimeError: File out/checkpoint_0.pt cannot be opened.",
        where=_EXC,
    ),
    sig(
        "corrupt_file",
        _F.IO_ERROR,
        (
            *("reader failed", "deserializing", "central directory", "weights only", "ran out of input"),
            *("corrupt", "badzipfile", "not a zip file", "unpickling", "invalid load key", "pickle data"),
            *("arrow", "truncated", "readerror", "unidentifiedimage", "end of file", "incomplete"),
            *("invalid header",),
            *("unable to load weights", "magic number", "crc", "checksum", "consistency check"),
            *("unexpected eof", "git-lfs", "gzip", "zlib"),
        ),
        r"PytorchStreamReader failed|Error while deserializing header|failed finding central directory"
        r"|Weights only load failed|EOFError: |CheckpointCorrupt|BadZipFile|UnpicklingError"
        r"|pickle data was truncated"
        r"|invalid load key|Arrow(?:Invalid|IOError)|tarfile\.ReadError|UnidentifiedImageError"
        r"|unexpected end of file"
        r"|Unable to load weights from|[Ii]nvalid (?:header|magic number)|BadGzipFile|zlib\.error"
        r"|lmdb\.\w*Error"
        r"|[Cc]hecksum (?:mismatch|failed|does not match)|[Cc]onsistency check failed|truncated file"
        r"|ParquetFile|not a [Pp]arquet|MetadataIncompleteBuffer|[Uu]nexpected EOF|(?:file|input|data"
        r"|archive)\S*(?: is| might be| may be)? [Cc]orrupt|[Cc]orrupt(?:ed)? (?:file|input|data|archive"
        r"|record)",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        where=_EXC,
    ),
    sig(
        "missing_file",
        _F.IO_ERROR,
        (
            *("filenotfound", "can't load", "datainvalid", "no such file", "no file named", "errno 5"),
            *("stale file", "errno 116"),
            *("input/output error", "remote i/o", "not connected", "datasetnotfound", "datafilesnotfound"),
            *("no checkpoint", "emptydataset", "notadirectory", "unable to open file"),
            *("datasetgeneration", "checkpoint"),
        ),
        rf"FileNotFoundError: (?!.*\.(?:ya?ml|toml|cfg|ini|sh|py|conf)['\"]?\s*$)|DataInvalid"
        rf"|No such file or directory: ['\"]{_DATA}|Error no file named|\[Errno (?:5|116|107|121|21|20)\]"
        r"|Input/output error|Stale file handle|Transport endpoint is not connected|DatasetNotFoundError"
        r"|DataFilesNotFoundError|EmptyDatasetError|DatasetGenerationError|NotADirectoryError"
        r"|IsADirectoryError"
        r"|[Cc]an(?:'t|not) find (?:a )?(?:valid )?checkpoint|[Nn]o (?:valid )?checkpoints? (?:was "
        r"|were )?found"
        r"|[Uu]nable to open file \(|Can't load (?:the )?(?:model|tokenizer|config|weights|feature|image"
        r"|processor)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_00020.pt'",
        where=_EXC,
    ),
)
