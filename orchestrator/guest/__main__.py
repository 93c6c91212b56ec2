"""`python3 guest.pyz VERB`: one verb; the request is the first line of stdin.

This file and both `__init__.py` must parse on any python3 (3.6 on), so that an old one is told with the fix.
"""

import importlib
import json
import sys

OLDEST = (3, 10)
# Each verb imports its own module: `hello` must not pay for libtmux.
VERBS = {
    "hello": "hello",
    "checkup": "checkup",
    "install": "install",
    "start": "start",
    "watch": "watch",
    "look": "look",
    "tail": "tail",
    "pull": "pull",
    "push": "push",
    "wheels": "wheels",
    "venv": "venv",
    "stop": "stop",
    "stacks": "stacks",
    "capture": "capture",
    "sizes": "space",
    "remove": "space",
}
# What the guest runs of itself; they take their arguments from argv.
PARTS = {
    "supervise": "supervise",
    "gpu-child": "gpu_child",
    "driver-child": "driver_child",
    "cuda-child": "cuda_child",
}


def main() -> int:
    """Run the verb of argv[1]; returns the exit code (0, or 3 after an `error` line)."""
    if sys.version_info < OLDEST:
        return _tell(
            "unsupported_python",
            "python3 is %d.%d; the guest needs 3.10 or newer" % sys.version_info[:2],  # noqa: UP031
            "install a newer python3 in the container, or name one in the inventory (python: /path)",
        )
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in PARTS:
        part = importlib.import_module("orchestrator.guest." + PARTS[verb])
        return int(part.main(sys.argv[2:]))
    if verb not in VERBS:
        return _tell("bad_request", "no verb %r" % verb, "one of: " + ", ".join(sorted(VERBS)))  # noqa: UP031
    wires = importlib.import_module("orchestrator.guest.link")
    module = importlib.import_module("orchestrator.guest." + VERBS[verb])
    return int(wires.serve(verb, module.run))


def _tell(code: str, message: str, hint: str) -> int:
    """Answer an error without any of our modules: they do not import on an old python3."""
    body = {"schema": 1, "seq": 0, "type": "error", "code": code, "message": message, "hint": hint}
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()
    return 3


if __name__ == "__main__":
    sys.exit(main())
