"""The program: tracing, compiling, imports, its command and configuration, and numbers that are lost."""

from __future__ import annotations

from orchestrator.classify.signature import Signature, Where, sig
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass
_EXC = Where.EXCEPTION

# Names that lie come before the names they lie about: `OutOfMemoryError: out of resource` is a compile error.
COMPILING: tuple[Signature, ...] = (
    sig(
        "fx_symbolic_trace",
        _F.FX_TRACE_RACE,
        ("using fx",),
        r"using FX to symbolically trace",
        "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.",
    ),
    sig(
        "fx_subgraph_race",
        _F.FX_TRACE_RACE,
        ("subgraph",),
        r"LoweringException: AttributeError: 'Subgraph' object has no attribute",
        "InductorError: LoweringException: AttributeError: 'Subgraph' object has no attribute 'dtype'",
        where=_EXC,
    ),
    sig(
        "fx_patcher_race",  # the tracer that one thread began was ended by another
        _F.FX_TRACE_RACE,
        ("current_patcher",),
        r"AssertionError: CURRENT_PATCHER is None",
        "AssertionError: CURRENT_PATCHER is None in finally block",
        where=_EXC,
    ),
    sig(
        "recompile_limit_hit",
        _F.RECOMPILE_LIMIT,
        ("hit config",),
        r"hit config\.(?:recompile_limit|cache_size_limit|accumulated_\w+_limit)",
        "torch._dynamo hit config.recompile_limit (8)",
        role=Role.PREDICTION,
    ),
    sig(
        "flex_unfused",
        _F.OOM_DENSE_FALLBACK,
        ("without torch.compile",),
        r"flex_attention called without torch\.compile",
        "UserWarning: flex_attention called without torch.compile() - this will use an unfused path",
        role=Role.PREDICTION,
    ),
    sig(
        "recompile_limit_raised",
        _F.RECOMPILE_LIMIT,
        ("limit", "detected recompile"),
        r"FailOnRecompileLimitHit|(?:Accumulated)?CacheLimitExceeded|Dynamo recompile limit exceeded"
        r"|RecompileLimitExceeded|Detected recompile when torch\.compile stance is",
        "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True.",
        where=_EXC,
    ),
    sig(
        "no_compiler",
        _F.COMPILE_ERROR,
        (
            *("compiler", "out of resource", "ptxas", "nvcc", "llvm error", "python.h", "cuda_home"),
            *("cc1plus", "gcc", "-lcuda"),
        ),
        r"Failed to find C compiler|^LLVM ERROR: |(?:error|OutOfMemoryError"
        r"|OutOfResources): out of resource: "
        r"|Triton Error \[CUDA\]: |ptxas\S* +(?:fatal|error)|Python\.h: No such file|InvalidCxxCompiler"
        r"|CUDA_HOME environment variable is not set|cannot find -lcuda|cc1plus: fatal error"
        r"|nvcc(?:'|:)? (?:fatal|not found)|[Cc]ompiler: \S+ (?:not found|is not working)"
        r"|No working C\+\+ compiler",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        certain=True,
    ),
    sig(
        "compile_failed",
        _F.COMPILE_ERROR,
        (
            *("compil", "inductorerror", "triton", "ptxas", "lowering", "dynamo", "error building extension"),
            *("ninja", "outofresources", "passmanager", "cuda_version", "cuda version"),
        ),
        r"BackendCompilerFailed|InductorError|NoTritonConfigsError|No valid triton configs|P(?:TXAS"
        r"|txas)Error"
        r"|CppCompileError|LoweringException|InternalTorchDynamoError|triton\S*CompilationError"
        r"|OutOfResources"
        r"|torch\._dynamo\.exc\.\w+|Error building extension|ninja: build stopped|MLIRModule"
        r"|PassManager::run failed"
        r"|detected CUDA version \(\S+\) mismatches",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        where=_EXC,
        generic=True,
    ),
    sig(
        "lowering_dump",  # of a cut-off message: the arguments that could not be lowered
        _F.COMPILE_ERROR,
        ("ranks_guaranteed", "rows_guaranteed", "fixedlayout", "tensorbox("),
        r"^\s*args\[\d+\]: .*(?:TensorBox\(|ROWS_GUARANTEED_SAFE|StorageBox)"
        r"|^\s*InputBuffer\(name=.*FixedLayout\(",
        "  args[11]: {'PRESCALE_QK': False, 'ROWS_GUARANTEED_SAFE': False}",
        weak=True,
    ),
)

PROGRAM: tuple[Signature, ...] = (
    sig(
        "nonfinite_told",
        _F.NAN_LOSS,
        ("stopping training", "loss scale", "exploding", "nan loss"),
        r"[Ll]oss is (?:nan|NaN|inf)\S*,? (?:stopping|aborting|exiting)|[Ll]oss scale already at minimum"
        r"|Minimum loss scale reached|NaN loss (?:detected|encountered)",
        "Loss is nan, stopping training",
        certain=True,
    ),
    sig(
        "nonfinite_printed",  # of a program whose lines tell no step; its steps are read elsewhere
        _F.NAN_LOSS,
        ("loss",),
        r"(?i)(?:\b|_)loss['\"]?\s*[:=]?\s*[-+]?nan\b",
        "running train_loss=nan",
        weak=True,
    ),
    sig(
        "nonfinite_raised",
        _F.NAN_LOSS,
        ("finite", "loss is", "loss scale", "floatingpoint", "nan", "exploding"),
        r"NonFinite|[Ll]oss is (?:nan|NaN|inf|not finite)|[Nn]on-?finite|[Ll]oss scale already at minimum"
        r"|Minimum loss scale reached|FloatingPointError|(?:nan|NaN)s? (?:or inf|detected|found"
        r"|encountered|in loss)"
        r"|(?:[Ff]ound|[Dd]etected|[Ee]ncountered|contains?|returned|got|are|is) (?:a |an |either )?"
        r"(?:`inf`, )?[`']?(?:nan|NaN|NAN)\b|[Ll]oss (?:became|has become|went|diverged|exploded)",
        "trainer.errors.NonFinite: the loss is nan at step 120",
        where=_EXC,
    ),
    sig(
        "import_because",  # the reason follows
        _F.IMPORT_ERROR,
        ("failed to import",),
        r"Failed to import \S+ because of",
        "RuntimeError: Failed to import transformers.models.qwen2 because of the following error",
        where=_EXC,
        generic=True,
    ),
    sig(
        "import_failed",
        _F.IMPORT_ERROR,
        (
            *("import", "module", "packagenotfound", "undefined symbol", "shared object", "glibc"),
            *("distributionnotfound", "versionconflict", "numpy.dtype", "requirement"),
        ),
        r"ModuleNotFoundError|\bImportError\b|PackageNotFoundError|undefined symbol: "
        r"|version `GLIBC\w*' not found"
        r"|cannot open shared object file|python[\d.]*\S*: No module named|DistributionNotFound"
        r"|VersionConflict"
        r"|numpy\.dtype size changed|is required for a normal functioning",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
    sig(
        "bad_usage",
        _F.CONFIG_ERROR,
        (
            *("error: ", "open file", "not found", "no such option", "no such command"),
            *("no such file", "missing "),
            *("got unexpected extra", "unrecognized arguments", "can't open"),
        ),
        r"\berror: (?:unrecognized arguments|argument |the following arguments are required|invalid choice"
        r"|ambiguous option|too few arguments|one of the arguments )|can't open file '"
        r"|(?:: |^)(?:command not found(?::|$)|No such file or directory: \S+\.py)"
        r"|: (?:line \d+: )?\S+: command not found"
        r"|^(?:sh: \d+|\S*zsh|bash)\S*:? .*: not found$"
        r"|\b[Ee]rror: (?:No such (?:option|command)|Missing (?:argument|option|parameter)|Invalid value)"
        r"|^-?(?:ba|z|da)?sh: .*: No such file or directory|^\S+: unrecognized option"
        r"|^Error: Got unexpected extra argument",
        "train.py: error: unrecognized arguments: --learning-rate 1e-4",
        certain=True,
    ),
    sig(
        "shell_refused",  # what a shell says of the script that it was to run, or its own starter
        _F.CONFIG_ERROR,
        (
            *("cannot open", "can't open", "can't cd to", "syntax error", "unbound variable"),
            *("parameter not set", "no such file", "not a directory", "exec format error"),
            *("directory nonexistent", "unexpected eof", "no rule to make", "environmentnamenotfound"),
            "could not consume arg",
        ),
        r"\S: \d+: (?:(?:\.: )?cannot open \S+: No such file$|[Cc]an't open \S+$|cd: can't cd to "
        r"|Syntax error: |\S+: parameter not set$|cannot create \S+: Directory nonexistent$)"
        r"|\S: line \d+: (?:syntax error|unexpected EOF|\S+: unbound variable$"
        r"|(?:cd: )?\S+: (?:No such file or|Not a) directory$)"
        r"|^exec \S+: exec format error$|make(?:\[\d+\])?: \*\*\* No rule to make target "
        r"|^EnvironmentNameNotFound: |^ERROR: Could not consume arg: ",
        "sh: 0: cannot open train.sh: No such file",
    ),
    sig(
        "bad_config_told",
        _F.CONFIG_ERROR,
        ("could not override", "could not find '", "mandatory value", "parsing override", "primary config"),
        r"^Could not override '|^In '\S+': Could not find '|^Missing mandatory value|^Error parsing override"
        r"|^(?:Cannot find )?[Pp]rimary config",
        "Could not override 'optim.lrr'.",
        certain=True,
    ),
    sig(
        "bad_config",
        _F.CONFIG_ERROR,
        (
            *("configinvalid", "config", "hydra", "omegaconf", "yaml", "toml", "validationerror", "override"),
            *("hfvalidation", "missingmandatory", "batch related", "404 client", "entrynotfound"),
            *("revisionnotfound",),
            *("environment variable", "env://", "filenotfound", "repo id"),
        ),
        r"ConfigInvalid|MissingConfigException|ConfigAttributeError|ConfigKeyError|ConfigCompositionException"
        r"|MissingMandatoryValue|hydra\.errors|Could not override|Key '\S+' is not in struct"
        r"|DeepSpeedConfigError"
        r"|yaml\.(?:scanner|parser|constructor)\.\w+|TOMLDecodeError|pydantic\S*ValidationError"
        r"|HFValidationError"
        r"|\b\d+ validation errors? for \w+|Check batch related parameters|Error parsing config"
        r"|\b404 Client Error|EntryNotFoundError|RevisionNotFoundError|does not appear to have a file named"
        r"|FileNotFoundError: .*\.(?:ya?ml|toml|cfg|ini|sh|py|conf)['\"]?\s*$"
        r"|environment variable \S+ expected, but not set"
        r"|is not a (?:local folder|valid model identifier)|Primary config (?:module|directory)",
        "hydra.errors.MissingConfigException: Cannot find primary config 'train'.",
        where=_EXC,
    ),
)
