"""The GPU: what the driver and the kernel say of the card, and what CUDA says of the program."""

from __future__ import annotations

from orchestrator.classify.signature import Signature, sig
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass
_XID = r"\bXid\b[^:]*(?:\([^)]*\))?[: ]+"

# These beat every line about communication between ranks: a lost card looks like that from the others.
HARDWARE: tuple[Signature, ...] = (
    sig(
        "gpu_nvlink",
        _F.GPU_NVLINK,
        ("nvlink", "xid", "nvswitch"),
        r"uncorrectable NVLink|cudaErrorNvlinkUncorrectable|NVLink.{0,40}(?:[Ff]atal|uncorrectable|is down"
        r"|inactive)"
        rf"|caused by previous Xid 1(?:4[4-9]|5[05])\b|\bSXid\b|{_XID}(?:74|136|14[4-9]|150|155)\b",
        "NVRM: Xid (PCI:0000:3b:00): 74, pid=2741, name=python3, NVLink: fatal error on link 3",
        certain=True,
    ),
    sig(
        "gpu_ecc",
        _F.GPU_ECC,
        ("ecc", "xid", "row remap", "page retirement", "double bit"),
        r"[Uu]ncorrectable ECC|cudaErrorECCUncorrectable|Double Bit ECC|[Rr]ow [Rr]emap\w* (?:[Ff]ail"
        r"|[Pp]ending)"
        rf"|caused by previous Xid (?:48|6[34]|9[45]|140)\b|{_XID}(?:48|6[34]|9[45]|140|15[67]|17[12])\b",
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=2741, name=python3, DBE (double bit error) ECC Error at 0x1f",
        certain=True,
    ),
    sig(
        "gpu_lost",
        _F.GPU_LOST,
        ("gpu", "bus", "xid", "rminitadapter", "nvidia", "device handle", "devices were found"),
        r"GPU (?:is|was) lost|[Ff]allen off the bus|Unable to determine the device handle|GPU requires reset"
        r"|GPU access blocked by the operating system|RmInitAdapter failed|ERR!\s.*GPU"
        rf"|caused by previous Xid (?:79|119|120)\b|{_XID}(?:46|54|62|79|109|110|119|120|143|158|167|169)\b",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        certain=True,
    ),
)

CUDA: tuple[Signature, ...] = (
    sig(
        "xid_cleanup",  # the driver takes a channel away: after every death, and after our own stop
        _F.CUDA_ILLEGAL_ACCESS,
        ("xid",),
        rf"{_XID}(?:43|45)\b",
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=2741, name=python3, Ch 00000001",
        role=Role.CASCADE,
    ),
    sig(
        "cuda_assert",
        _F.CUDA_DEVICE_ASSERT,
        ("assert", "cudaerrorassert"),
        r"device-side assert(?!ion)|cudaErrorAssert\b|\bthread: \[\d+,\d+,\d+\],? Assertion"
        r"|: Assertion [`'].+ failed\.? *$"
        r"|Assertion `[^`']+` failed",
        "Loss.cu:250: nll_loss: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.",
        certain=True,
    ),
    sig(
        "cuda_illegal",
        _F.CUDA_ILLEGAL_ACCESS,
        (
            *("illegal", "misaligned", "unspecified launch", "xid", "invalid program", "hardware stack"),
            *("execution_failed", "invalid address space", "mmu fault"),
        ),
        r"illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|an illegal instruction"
        r"|misaligned address|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|invalid program counter"
        r"|hardware stack error|operation not supported on global/shared address space"
        rf"|CU(?:BLAS|DNN)_STATUS_EXECUTION_FAILED|{_XID}(?:11|13|25|31|32|69|80)\b",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        certain=True,
    ),
    sig(
        "cuda_check_frames",  # of a cut-off message: an illegal access, an assertion, ECC
        _F.CUDA_ILLEGAL_ACCESS,
        ("c10_cuda_check",),
        r"c10_cuda_check_implementation",
        "frame #2: c10::cuda::c10_cuda_check_implementation(int, char const*, int, bool) + 0x3c2",
        weak=True,
    ),
    sig(
        "cuda_init_warned",
        _F.CUDA_INIT,
        ("cuda initialization", "not compatible with the current"),
        r"UserWarning: .*CUDA initialization: |is not compatible with the current PyTorch installation",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old.",
        role=Role.PREDICTION,
    ),
    sig(
        "cuda_init",
        _F.CUDA_INIT,
        (
            *("cuda", "nvidia", "nvml", "no gpus", "ptx", "kernel image", "nvrm", "not_initialized"),
            *("nvidia-smi",),
            *("acceler", "devices were found", "no hip gpus"),
        ),
        r"busy or unavailable|no kernel image|NVIDIA driver on your system is too old|Found no NVIDIA driver"
        r"|driver version is insufficient|Failed to initialize NVML|NVML: ?(?:Driver/library|Unknown)"
        r"|[Dd]river/library version mismatch|no CUDA-capable device|No CUDA GPUs are available|no GPUs found"
        r"|invalid device ordinal|forward compatibility was attempted|system not yet initialized"
        r"|system has unsupported display driver|unsupported toolchain|device kernel image is invalid"
        r"|CUDA (?:driver )?initialization (?:error|failed)|DeferredCudaCallError|CUDA unknown error"
        r"|NVMLError_(?:LibRm|Driver|Library|Uninit|NoPerm)\w*|CUDA error: (?:initialization error"
        r"|unknown error|no device)"
        r"|[Uu]nexpected error from cudaGetDeviceCount|Torch not compiled with CUDA"
        r"|not compiled with CUDA enabled"
        r"|Cannot re-initialize CUDA in forked|torch\.cuda\.is_available\(\) is False"
        r"|NVIDIA-SMI has failed because|couldn't communicate with the NVIDIA driver|^No devices were found"
        r"|CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED|CUDA_ERROR_(?:NO_DEVICE|INVALID_DEVICE|SYSTEM|NOT_INIT)\w*"
        r"|NVRM: API mismatch|libcuda\.so(?:\.1)?: cannot open",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
)
CUDA_OTHER: tuple[Signature, ...] = (
    sig(
        "cuda_error",
        _F.PYTHON_EXCEPTION,
        ("cuda", "xid", "cublas", "cudnn"),
        r"CUDA error: |cuda runtime error|CUDA-capable device|NVRM: Xid|CU(?:BLAS|DNN)_STATUS_\w+"
        r"|CUDA driver error",
        "RuntimeError: CUDA error: invalid argument",
        generic=True,
    ),
)
