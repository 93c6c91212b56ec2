#!/usr/bin/env bash
# Make the virtual environment and install what `demo`, `dev` or `test` needs. Safe to run again: it does only what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:?usage: scripts/setup.sh demo|dev|test}
venv=${VENV:-.venv}
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}
say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 14; }

command -v "$python" >/dev/null || die "no $python here; install it (apt install python3) or name one with PYTHON="
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$python is $("$python" -V 2>&1); dflashctl needs Python 3.10 or newer: name one with PYTHON="

# A package by apt when root; otherwise say which one to install. $1 is the command that shows it is there.
need() {
  command -v "$1" >/dev/null && return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $2"
    apt-get -o DPkg::Lock::Timeout=120 -qq update >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq -y --no-install-recommends install "$2" >/dev/null
  else
    die "$1 is missing; install it with: sudo apt install $2"
  fi
}

need tmux tmux
[ "$what" != test ] || need git git

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  # A bare Debian has python3 without ensurepip; then `venv` leaves a half-made folder behind.
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    package=python3-venv
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
      die "$python has no ensurepip; install it with: sudo apt install $package"
    say "installing $package"
    apt-get -o DPkg::Lock::Timeout=120 -qq update >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -qq -y install "$package" >/dev/null
  fi
  say "making $venv with $("$python" -V)"
  "$python" -m venv --clear "$venv"
fi

# Where nobody is to be asked, apt and pip work side by side: each mostly waits for its downloads.
lab=
if [ "$what" = test ] && [ "${CI:-}" = true ]; then
  said=$(mktemp)
  tests/lab/install.sh >"$said" 2>&1 &
  lab=$!
  trap 'kill "$lab" 2>/dev/null || true; rm -f "$said"' EXIT
fi

case $what in
  demo) extra=trainer,plot ;;
  *) extra=dev ;;
esac
stamp="$venv/.installed-$extra-$(cat pyproject.toml <(echo "$torch") | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
  export PIP_NO_INPUT=1
  case ${TORCH_INDEX:-} in
    '') index=() ;;
    cpu) index=(--index-url https://download.pytorch.org/whl/cpu) ;;
    *) index=(--index-url "$TORCH_INDEX") ;;
  esac
  # torch first and pinned, so that no other requirement pulls in another build of it.
  say "installing $torch (the long part; TORCH_INDEX=cpu takes the small CPU build)"
  "${pip[@]}" install "${index[@]}" "$torch"
  say "installing dflashctl[$extra]"
  "${pip[@]}" install --editable ".[$extra]"
  rm -f "$venv"/.installed-"$extra"-*
  touch "$stamp"
fi

if [ -n "$lab" ]; then
  wait "$lab" && failed= || failed=1
  tail -n 30 "$said"
  [ -z "$failed" ] || die "the packages of the lab could not be installed"
elif [ "$what" = test ]; then
  tests/lab/install.sh
fi
