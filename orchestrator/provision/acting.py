"""Does one step: apt by a plain shell, the environment by the guest, the trainer as `launch` sends it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.act import actor
from orchestrator.errors import CommandFailed, CommandTimeout, GuestRefused
from orchestrator.preparing import send_trainer
from orchestrator.provision.plan import installs, must_rebuild, venv_key
from orchestrator.provision.saying import Moment, Reader, why_apt, why_pip
from orchestrator.provision.wheelhouse import Wheelhouse, send
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.connection.shell import Stream
    from orchestrator.provision.form import Provision, Step, Venv
    from orchestrator.provision.lock import Lock
    from orchestrator.provision.plan import Wishes
    from orchestrator.provision.seen import Seen
    from orchestrator.site import Site

Tell = Callable[[Moment], None]
UNPACKED = 4  # times its wheels is an environment
STEP_LIMIT_S = 4 * 3600.0
RUN_LIMIT_S = 3600.0
_SILENT_S = 5.0
# apt is in a session of its own: a cut connection or a Ctrl-C would leave packages half configured. A list of
# packages that is missing or old is fetched first, and what a power cut left is mended.
# $1 the log's folder, $2 the seconds to wait for another apt, then the packages.
_APT = r"""
dir=$1 wait=$2; shift 2
mkdir -p "$dir" || exit 1
log=$dir/apt.log code=$dir/.apt.$$
: >"$log" || exit 1
setsid sh -c '
  trap "" HUP INT TERM PIPE
  log=$1 file=$2 wait=$3; shift 3
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
  get() {
    apt-get -q -y -o DPkg::Lock::Timeout="$wait" -o Acquire::Retries=1 -o APT::Status-Fd=1 \
      -o Dpkg::Use-Pty=0 --no-install-recommends "$@"
  }
  get install "$@"; code=$?
  if [ $code != 0 ] && grep -q "dpkg was interrupted" "$log"; then
    dpkg --configure -a && get install "$@"; code=$?
  fi
  if [ $code != 0 ] && grep -Eq "Unable to locate|no installation candidate|Failed to fetch" "$log"; then
    get update && get install "$@"; code=$?
  fi
  echo $code >"$file"
' apt "$log" "$code" "$wait" "$@" >>"$log" 2>&1 </dev/null &
tail -n +1 -s 0.1 -f --pid=$! "$log"
read -r ended <"$code"
rm -f "$code"
exit "$ended"
"""


class StepFailed(CommandFailed):
    """A step was tried and came to nothing; `tail` is what was said last."""

    def __init__(self, message: str, *, hint: str | None, tail: tuple[str, ...]) -> None:
        super().__init__(message, hint=hint)
        self.tail = tail


class Actor:
    """Does the steps of one provisioning."""

    def __init__(
        self, site: Site, provision: Provision, wishes: Wishes, house: Wheelhouse | None, clock: Clock
    ) -> None:
        self._site = site
        self._provision = provision
        self._wishes = wishes
        self._house = house
        self._clock = clock

    def do(self, step: Step, seen: Seen, tell: Tell) -> None:
        """Do a step that is lacking.

        Raises:
            StepFailed: It ended with an error.
            GuestRefused: The guest said no: no space, or somebody else is at it.
            BlindError: The way there broke; a second call goes on.
        """
        if step.apt is not None:
            self._apt(step, tell)
        elif step.venv is not None:
            self._venv(step, step.venv, seen, tell)
        elif step.trainer is not None:
            send_trainer(self._site, lambda done, total: tell(Moment("sending", done, total, is_bytes=True)))
        elif step.run is not None:
            self._run(step, step.run)

    def _fail(self, step: Step, why: tuple[str, str | None], tail: tuple[str, ...]) -> StepFailed:
        return StepFailed(
            f"{self._site.target_key}: {step.name}: {one_line(why[0], 400)}", hint=why[1], tail=tail
        )

    def _run(self, step: Step, argv: list[str]) -> None:
        said = self._site.shell().run(argv, timeout_s=RUN_LIMIT_S)
        if said.exit_code != 0:
            lines = (said.stdout + said.stderr).decode("utf-8", "replace").splitlines()
            tail = tuple(one_line(line, 300) for line in lines[-12:])
            raise self._fail(step, (f"`{' '.join(argv)}` ended with exit code {said.exit_code}", None), tail)

    def _apt(self, step: Step, tell: Tell) -> None:
        words = (f"{self._wishes.state_dir}/provision", f"{self._provision.apt_wait:.0f}", *(step.apt or ()))
        stream = self._site.shell().stream(("sh", "-c", _APT, "apt", *words))
        reader = Reader()
        try:
            self._follow(stream, reader, tell)
        finally:
            stream.close()
        if stream.exit_code not in (0, None):
            reader.lines += stream.stderr_tail().splitlines()
            raise self._fail(step, why_apt(tuple(reader.lines)), reader.tail())

    def _follow(self, stream: Stream, reader: Reader, tell: Tell) -> None:
        deadline = self._clock.monotonic() + STEP_LIMIT_S
        while (line := stream.read_line(_SILENT_S)) != b"":
            if line is None:
                if self._clock.monotonic() > deadline:
                    raise CommandTimeout(
                        f"{self._site.target_key}: apt did not end in {STEP_LIMIT_S / 3600:g} h"
                    )
                continue
            moment = reader.read(one_line(line.decode("utf-8", "replace"), 500).strip())
            if moment is not None:
                tell(moment)

    def _venv(self, step: Step, venv: Venv, seen: Seen, tell: Tell) -> None:
        key = venv_key(venv, seen, self._wishes)
        lock = self._wishes.lock
        if key is None or lock is None:
            raise self._fail(
                step, ("there is no Python there", "put a step with apt: [python3] before it"), ()
            )
        client = self._site.client()
        if self._house is not None and (key not in seen.venvs or must_rebuild(venv, seen, self._wishes)):
            send(client, key, self._house, tell)
        reader = Reader()
        stream = client.watch(self._request(venv, seen, key, lock), verb="venv")
        try:
            while not stream.is_ended:
                message = stream.read(_SILENT_S)
                if message is None or message["type"] != "said":
                    continue
                moment = reader.read(one_line(str(message.get("line", "")), 500).strip())
                if moment is not None:
                    tell(moment)
        except GuestRefused as refusal:
            if refusal.reason != "install_failed":
                raise
            what, fix = why_pip(tuple(reader.lines))
            raise StepFailed(
                f"{refusal.message}: {one_line(what, 400)}", hint=fix, tail=reader.tail()
            ) from refusal
        finally:
            stream.close()

    def _request(self, venv: Venv, seen: Seen, key: str, lock: Lock) -> dict[str, Any]:
        source = self._wishes.source
        return {
            "key": key,
            "by": actor(),
            "installs": installs(venv, source),
            "constraints": lock.text,
            "imports": list(venv.imports),
            "wheelhouse": self._house is not None,
            "rebuild": must_rebuild(venv, seen, self._wishes),
            "min_free_bytes": self._room(venv),
            "facts": {
                "key": key,
                "lock_sha256": hashlib.sha256(lock.text.encode()).hexdigest(),
                "source": source.label,
                "python": seen.minor,
                "requirements": list(venv.requirements),
            },
        }

    def _room(self, venv: Venv) -> int:
        if self._house is not None:
            return self._house.num_bytes * UNPACKED
        return venv.free_cpu if self._wishes.source.is_cpu and venv.free_cpu is not None else venv.free
