#!/bin/sh
# Install what the lab needs (OpenSSH's server, LXC, debootstrap, gcc, tmux) on Debian or Ubuntu, and Chromium,
# in which the dashboard is tested.
#
#   tests/lab/install.sh [-y] [--check]
#
# Only what is missing is installed. No service is started: a policy-rc.d that answers "denied" is in place
# while apt runs, and whatever stood there before is put back, also when the install is interrupted. The units
# of a package that this script installed are disabled as well, or the next boot would start them.
# Exit codes: 0 all there, 1 something is missing and was not installed, 2 usage.
set -eu

yes=${CI:+1}
check=
for arg in "$@"; do
    case $arg in
    -y | --yes) yes=1 ;;
    --check) check=1 ;;
    *)
        echo "install.sh: unknown argument '$arg'; usage: tests/lab/install.sh [-y] [--check]" >&2
        exit 2
        ;;
    esac
done
if [ "${CI:-}" = false ] || [ "${CI:-}" = 0 ]; then yes=; fi

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # an ordinary user's PATH has no sbin, where sshd lives

missing=
need() { # need PACKAGE COMMAND: add PACKAGE when COMMAND is not on the PATH
    command -v "$2" >/dev/null 2>&1 || missing="$missing $1"
}
need openssh-server sshd
need openssh-client ssh-keygen
need lxc lxc-start
need lxc lxc-attach
need debootstrap debootstrap
need gcc gcc
need tmux tmux
command -v google-chrome >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || need chromium chromium
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ' | sed 's/ *$//')

if [ -z "$missing" ]; then
    echo "lab: everything is installed"
    exit 0
fi
if [ -n "$check" ]; then
    echo "lab: missing packages: $missing" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "lab: apt-get not found, so this is not Debian or Ubuntu; install the equivalents of: $missing" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "lab: missing packages: $missing; install them as root: sudo tests/lab/install.sh" >&2
    exit 1
fi
if [ -z "$yes" ]; then
    if [ ! -t 0 ]; then
        echo "lab: missing packages: $missing" >&2
        echo "lab: not installed, since there is no terminal to ask on; run: tests/lab/install.sh -y" >&2
        exit 1
    fi
    echo "The lab needs: $missing"
    echo "They are installed by apt. No service is started or enabled; the lab runs its own sshd on 127.0.0.1."
    printf 'Install them now? [y/N] '
    read -r answer
    case $answer in
    y | Y | yes | Yes) ;;
    *)
        echo "lab: not installed" >&2
        exit 1
        ;;
    esac
fi

policy=/usr/sbin/policy-rc.d
saved=$policy.before-dflashctl-lab
ours() { [ -f "$policy" ] && grep -q 'dflashctl lab' "$policy" 2>/dev/null; }
restore() {
    if ours; then rm -f "$policy"; fi
    if [ -e "$saved" ] || [ -L "$saved" ]; then mv -f "$saved" "$policy"; fi
}
restore # an earlier run that was killed outright may have left ours in place
trap restore EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -e "$policy" ] || [ -L "$policy" ]; then mv "$policy" "$saved"; fi
printf '%s\n' '#!/bin/sh' '# dflashctl lab: no service starts while its packages are installed' 'exit 101' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
# An old package list names files that the mirror no longer has, so a failed install is tried again on a new one.
# shellcheck disable=SC2086 # $missing is a list
apt-get install -y -q --no-install-recommends $missing || {
    apt-get update -q
    apt-get install -y -q --no-install-recommends $missing
}

if command -v systemctl >/dev/null 2>&1; then
    case " $missing " in
    *" openssh-server "*) systemctl disable ssh.service ssh.socket >/dev/null 2>&1 || true ;;
    esac
    case " $missing " in
    *" lxc "*) systemctl disable lxc.service lxc-net.service lxc-monitord.service >/dev/null 2>&1 || true ;;
    esac
fi
echo "lab: installed: $missing"
