"""One look at a container by a plain shell: no word of it needs a Python, and nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.connection import GuestClient
from orchestrator.errors import CommandFailed
from orchestrator.provision.lock import PYTHONS, key_of
from orchestrator.provision.seen import Seen, parse_seen
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.provision.form import Provision, Step
    from orchestrator.provision.plan import Wishes
    from orchestrator.site import Site

LOOK_TIMEOUT_S = 60.0
CHECK_TIMEOUT_S = 600.0
# $1 the state directory, $2 the guest's Python, $3 the trainer's sha256, then what is asked: kind:name.
_LOOK = r"""
state=$1 python=$2 trainer=$3; shift 3
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
echo "uid $(id -u)"
echo "machine $(uname -m)"
echo "glibc $(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "apt $(command -v apt-get)"
place=$state
while [ ! -d "$place" ] && [ "$place" != / ]; do place=$(dirname "$place"); done
df -Pk "$place" 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "free $free"; }
minor=
if command -v "$python" >/dev/null 2>&1; then
  version=$("$python" -I -c 'import platform; print(platform.python_version())' 2>/dev/null </dev/null)
  echo "python $version"
  minor=$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null)
fi
echo "current $(readlink "$state/venv" 2>/dev/null)"
[ ! -e "$state/trainers/$trainer/.complete" ] || echo "trainer yes"
list='import importlib.metadata as metadata, json
print(json.dumps({each.metadata["Name"]: each.version for each in metadata.distributions()}))'
for asked; do
  name=${asked#*:}
  case $asked in
  program:*)
    command -v "$name" >/dev/null 2>&1 || continue
    said=$("$name" -V 2>/dev/null </dev/null || "$name" --version 2>/dev/null </dev/null)
    echo "program $name ${said:-there}" | head -n 1 ;;
  module:*)
    ! "$python" -I -c "import $name" >/dev/null 2>&1 </dev/null || echo "module $name" ;;
  package:*)
    echo "package $name $(dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null)" ;;
  key:"$minor"=*)
    key=${name#*=} venv=$state/venvs/${name#*=}
    [ -e "$venv/dflashctl.json" ] || continue
    echo "stamp $key $(cat "$venv/dflashctl.json")"
    echo "has $key $("$venv/bin/python" -I -c "$list" 2>/dev/null </dev/null)" ;;
  esac
done
exit 0
"""


def state_dir(site: Site) -> str:
    """Return the state directory as it is written there; nobody is asked."""
    return GuestClient(site.shell(), site.target).state_dir


def look(site: Site, provision: Provision, wishes: Wishes) -> Seen:
    """Return what is there.

    Raises:
        BlindError: The container cannot be reached.
        CommandFailed: Its shell said something else.
    """
    words = (wishes.state_dir, wishes.guest_python, wishes.trainer or "-", *_asked(provision, wishes))
    said = site.shell().run(("sh", "-c", _LOOK, "look", *words), timeout_s=LOOK_TIMEOUT_S)
    if said.exit_code != 0:
        why = one_line(said.stderr_text(), 300).strip() or f"exit code {said.exit_code}"
        raise CommandFailed(f"{site.target_key}: a plain shell there failed: {why}")
    seen = parse_seen(said.stdout.decode("utf-8", "replace"))
    asked = [step for step in provision.steps if step.check is not None and step.check.run is not None]
    return replace(seen, commands={step.name: _holds(site, step) for step in asked})


def _asked(provision: Provision, wishes: Wishes) -> list[str]:
    words = []
    for step in provision.steps:
        check = step.check
        if check is not None and check.program is not None:
            words.append(f"program:{check.program}")
        if check is not None and check.module is not None:
            words.append(f"module:{check.module}")
        if check is None:
            words += [f"package:{name.partition('=')[0]}" for name in step.apt or ()]
        if step.venv is not None and wishes.lock is not None:
            wanted = (wishes.lock, step.venv.requirements, step.venv.imports, wishes.source.label)
            words += [f"key:{python}={key_of(*wanted, python)}" for python in PYTHONS]
    return words


def _holds(site: Site, step: Step) -> bool:
    if step.check is None or step.check.run is None:
        return True
    return site.shell().run(step.check.run, timeout_s=CHECK_TIMEOUT_S).exit_code == 0
