"""What ssh, pct, lxc and tmux say of themselves. It is of the way there, and says nothing about the run.

Only a pane shows these; in a run's own log they are the words of some other program.
"""

from __future__ import annotations

from orchestrator.classify.signature import Signature, sig
from orchestrator.types.failure import FailureClass

_F = FailureClass

TRANSPORT: tuple[Signature, ...] = (
    sig(
        "ssh_unreachable",
        _F.SSH_ERROR,
        (
            *("ssh: ", "connection to ", "exchange_identification", "banner", "packet_write_wait"),
            *("write failed", "remote host", "ssh_dispatch"),
        ),
        r"\bssh: (?:connect to (?:host|address) |Could not resolve hostname )"
        r"|\b(?:kex|ssh)_exchange_identification: |[Bb]anner exchange|\bpacket_write_wait: "
        r"|(?<!['\"])\bConnection to \S+(?: port \d+)? (?:closed by remote host|timed out(?!\. \())"
        r"|^[Ww]rite failed: Broken pipe|^Read from remote host |\bssh_dispatch_run_fatal",
        "ssh: connect to host 192.0.2.10 port 22: Connection timed out",
        certain=True,
    ),
    sig(
        "ssh_dropped",
        _F.SSH_ERROR,
        ("client_loop", "disconnect", "connection ", "not responding", "mux_client", "channel", "rsync"),
        r"client_loop: send disconnect|\bReceived disconnect from |\bDisconnected from \S+ port \d+"
        r"|^Connection (?:closed|reset) by \S+ port \d+|\bTimeout, server \S+ not responding"
        r"|\bmux_client_\w+: |^channel \d+: open failed|\bshell request failed on channel \d+"
        r"|^rsync: .*connection unexpectedly closed|^scp: Connection closed",
        "client_loop: send disconnect: Broken pipe",
        certain=True,
    ),
    sig(
        "ssh_refused",
        _F.SSH_ERROR,
        (
            *("publickey", "password", "host key", "verification failed"),
            *("unable to negotiate", "load key", "authentication failures", "bad owner", "identity file"),
            *("sign_and_send", "please try again", "unprotected private", "keyboard-interactive"),
        ),
        r"Permission denied[ ,(]+(?:publickey|password|keyboard-interactive|gssapi)"
        r"|Permission denied, please try again|\bHost key verification failed"
        r"|^Unable to negotiate with |^Load key \""
        r"|no matching host key"
        r"|Too many authentication failures|^Bad owner or permissions on \S*\.ssh"
        r"|^Warning: Identity file \S+ not accessible|\bsign_and_send_pubkey: |UNPROTECTED PRIVATE KEY FILE",
        "root@192.0.2.10: Permission denied (publickey,password).",
        certain=True,
    ),
    sig(
        "ssh_key_changed",  # a banner before what ssh does about it
        _F.SSH_ERROR,
        ("host identification",),
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @",
        certain=True,
        generic=True,
    ),
    sig(
        "paramiko",
        _F.SSH_ERROR,
        ("paramiko", "no existing session", "sshexception"),
        r"paramiko\.(?:ssh_exception\.)?\w+|\bSSHException: |NoValidConnectionsError",
        "paramiko.ssh_exception.NoValidConnectionsError: [Errno None] Unable to connect to port 22",
        certain=True,
    ),
    sig(
        "pct_state",
        _F.PCT_ERROR,
        (
            *("not running", "already running", "is locked", "lock file"),
            *("configuration file",),
        ),
        r"^(?:Error: )?(?:CT \d+ (?:not|already) running|(?:CT|VM) is locked \(\w+\))|\bCT \d+ not running\b"
        r"|\bcontainer '?\d+'? (?:not|already) running"
        r"|[Cc]onfiguration file '\S*lxc/\d+\.conf' does not exist"
        r"|\bunable to find configuration file for (?:CT|VM|container) "
        r"|can't lock file '\S*(?:lxc|pve)\S*'",
        "container '200' not running!",
        certain=True,
    ),
    sig(
        "pct_waits",
        _F.PCT_ERROR,
        ("acquire",),
        r"trying to acquire (?:lock|cfs lock)",
        "trying to acquire lock...",
        certain=True,
        generic=True,
    ),
    sig(
        "lxc_attach",
        _F.PCT_ERROR,
        ("lxc", "init pid", "attach context", "startup for container"),
        r"\blxc-(?:attach|start|info|execute|stop): |\bFailed to get (?:init pid|attach context)"
        r"|\blxc_(?:attach|start|init)\w*: |startup for container '\d+' failed|command 'lxc-\w+ .*' failed",
        "lxc-attach: 200: ../src/lxc/attach.c: get_attach_context: 405 Failed to get init pid",
        certain=True,
    ),
    sig(
        "pct_usage",
        _F.PCT_ERROR,
        ("ipcc_send", "pct", "running ct", "running vm", "run as root", "quorum", "hostname lookup"),
        r"\bipcc_send_rec\[\d+\] failed|\bcan only pu(?:sh|ll) files (?:to|from) a running (?:CT|VM)"
        r"|^please run as root$|missing command at \S*pct\.pm|unknown command 'pct "
        r"|cluster not ready - no quorum|\bpct: (?:error|failed)|hostname lookup '[^']+' failed",
        "ipcc_send_rec[1] failed: Unable to load access control list: Connection refused",
        certain=True,
    ),
    sig(
        "pct_arguments",
        _F.PCT_ERROR,
        ("unable to parse option", "not enough arguments", "parameter verification", "too many arguments"),
        r"^\d+ (?:unable to parse option|not enough arguments|Parameter verification failed"
        r"|too many arguments)",
        "400 Parameter verification failed.",
        certain=True,
    ),
    sig(
        "tmux_gone",
        _F.TMUX_ERROR,
        (
            *("no server running", "/tmux-", "no session", "no current", "can't find", "lost server"),
            *("server exited", "session not found", "lost tty", "connect to server"),
        ),
        r"\bno server running on |\berror connecting to \S*tmux\S* \(|^no sessions?$"
        r"|^no current (?:session|client|target)"
        r"|\bcan't find (?:pane|session|window|client)\b|^\[?lost (?:server|tty)\]?$"
        r"|^\[?server exited(?: unexpectedly)?\]?$|^session not found: "
        r"|^failed to connect to server(?:: (?:Connection refused|No such file or directory))?$",
        "no server running on /tmp/tmux-0/default",
        certain=True,
    ),
    sig(
        "tmux_refused",
        _F.TMUX_ERROR,
        (
            *("duplicate session", "open terminal failed", "unsuitable terminal", "nested with care"),
            *("protocol version mismatch", "create session failed", "create window failed", "tmux-"),
            *("bad session name", "couldn't create"),
        ),
        r"^duplicate session: |^open terminal failed: |missing or unsuitable terminal"
        r"|sessions should be nested with care"
        r"|^(?:server )?protocol version mismatch|^create (?:session|window|pane) failed"
        r"|^(?:error creating|couldn't create(?: directory)?) \S*tmux|^bad session name",
        "duplicate session: train",
        certain=True,
    ),
)
