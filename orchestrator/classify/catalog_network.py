"""Who lets whom in: tokens, file rights, ports, and hosts on the network."""

from __future__ import annotations

from orchestrator.classify.signature import Signature, Where, sig
from orchestrator.types.failure import FailureClass

_F = FailureClass
_EXC = Where.EXCEPTION

# A port below 1024 is refused and not in use, though the first sentence is the same.
NETWORK: tuple[Signature, ...] = (
    sig(
        "auth_told",
        _F.AUTH_ERROR,
        (
            *("client error", "forbidden", "wandb: ", "an error occurred", "is restricted"),
            *("unauthorized", "api_key", "authentication failed", "credentials"),
        ),
        r"^40[13] (?:Client Error|Forbidden|Unauthorized)|^Access to (?:model|dataset) \S+ is restricted"
        r"|wandb: (?:ERROR|error|W&B).*(?:api[_ ]key|[Uu]nauthorized|40[13]|permission)"
        r"|api_key not configured"
        r"|^(?:fatal: )?Authentication failed for|^fatal error: An error occurred \(40[13]\)"
        r"|Unable to locate credentials",
        "Access to model org/model is restricted. You must have access to it and be authenticated",
        certain=True,
    ),
    sig(
        "permission",
        _F.PERMISSION_DENIED,
        (
            *("permission denied", "permissionerror", "permissiondenied", "errno 13", "eacces"),
            *("not permitted", "errno: 13"),
            *("os error 13",),
        ),
        r"PermissionError|\[Errno (?:13|1)\]|\(errno: 13\b|code: -13\b|\bEACCES\b|os error 13"
        r"|[:^] ?[Pp]ermission denied\b|PermissionDenied|Operation not permitted",
        "PermissionError: [Errno 13] Permission denied: '/data/out'",
    ),
    sig(
        "port_taken",
        _F.PORT_IN_USE,
        (
            *("in use", "bind to port", "is utilizing", "eaddrinuse", "errno 98", "errno: 98"),
            *("already allocated", "already being used"),
            *("port is already",),
        ),
        r"[Aa]ddress already in use|EADDRINUSE|could not bind to port|another process is utilizing"
        r"|\[Errno 98\]|\(errno: 98\b|code: -98\b"
        r"|[Pp]ort\S* (?:\d+ )?(?:is )?already (?:in use|allocated|being used)|[Pp]ort \d+ is (?:in use"
        r"|not available)",
        "OSError: [Errno 98] Address already in use",
    ),
    sig(
        "port_unbound",
        _F.PORT_IN_USE,
        ("failed to listen", "failed to bind"),
        r"server socket has failed to listen on any local network address",
        "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.",
        certain=True,
        generic=True,
    ),
    sig(
        "auth_gated",  # the status that follows says whether a token or a licence is missing
        _F.AUTH_ERROR,
        ("gated repo",),
        r"access (?:a )?gated repo",
        "OSError: You are trying to access a gated repo.",
        generic=True,
        certain=True,
    ),
    sig(
        "auth",
        _F.AUTH_ERROR,
        (
            *("client error", "gated", "unauthorized", "credential", "api_key", "api key", "token"),
            *("forbidden",),
            *("accessdenied", "access denied", "restricted", "authentic", "http error", "commerror"),
            *("denied:",),
            *("username or password", "permission_denied"),
        ),
        r"\b40[13] (?:Client Error|Forbidden)|GatedRepoError|Access to (?:model|dataset) \S+ is restricted"
        r"|\b401 Unauthorized|HTTP Error 40[13]\b|Invalid (?:credentials|user token|username or password)"
        r"|LocalTokenNotFoundError|[Tt]oken is required|[Ii]nvalid (?:API|api)[ _]key|api_key not configured"
        r"|API key (?:must|not|is|you)|[Ii]nvalid token|NoCredentialsError|Unable to locate credentials"
        r"|DefaultCredentialsError"
        r"|\bAccessDenied\b|HeadObject operation: (?:Forbidden|Unauthorized)|[Aa]uthentication (?:failed"
        r"|required)"
        r"|denied: requested access|permission_denied: |CommError: .*(?:[Pp]ermission|denied|401|403)",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-0)",
        where=_EXC,
    ),
    sig(
        "network",
        _F.NETWORK_ERROR,
        (
            *("connection", "connect", "resolution", "not known", "unreachable", "timed out"),
            *("timeout", "max retries"),
            *("client error", "server error", "rate limit", "too many requests", "sslerror"),
            *("proxyerror", "gateway"),
            *("offline", "localentrynotfound", "chunkedencoding", "incompleteread"),
            *("name or service", "unavailable"),
            *("requests.exceptions", "httpx", "urllib", "no route to host", "disconnected"),
            *("http error", "cas service"),
            *("resolve host", "clientpayload", "error sending request", "client has been closed"),
            *("fstimeout", "aiohttp", "reqwest", "hf_transfer"),
        ),
        r"requests\.exceptions\.\w+|MaxRetryError|Max retries exceeded|NameResolutionError|[Nn]ame resolution"
        r"|Name or service not known|[Nn]etwork is unreachable|ConnectTimeout|ReadTimeout|\bSSLError"
        r"|ProxyError"
        r"|ChunkedEncodingError|IncompleteRead|\b(?:429 Client|50[0-4] Server) Error|Too Many Requests"
        r"|couldn't connect to '?https?:|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|[Cc]ould not resolve host"
        r"|EndpointConnectionError|ClientConnectorError|ServerDisconnectedError|ClientPayloadError"
        r"|httpx\.\w+Error"
        r"|urllib\.error\.URLError|No route to host|RemoteDisconnected|[Cc]onnection aborted"
        r"|CAS service error"
        r"|error sending request for url|Bad Gateway|Service Unavailable|Gateway Time-?out|[Rr]ate limit"
        r"|client socket has (?:timed out|failed to connect)|ConnectionRefusedError"
        r"|Failed to establish a new connection"
        r"|HTTP Error (?:429|50\d)|Cannot send a request, as the client has been closed|FSTimeoutError"
        r"|aiohttp\.\S*(?:Timeout|Connection|Client)\w*Error|\breqwest::Error"
        r"|downloading using `?hf_transfer",
        "requests.exceptions.ConnectionError: Max retries exceeded with url: /org/model",
        where=_EXC,
    ),
    sig(
        "network_told",
        _F.NETWORK_ERROR,
        (
            *("max retries", "retrying in", "[retry", "could not resolve", "couldn't connect"),
            *("unable to resolve",),
            *("name resolution", "client socket has", "curl: (", "connection broken"),
            *("failed to fetch", "timed out"),
            *("network is unreachable",),
        ),
        r"Max retries exceeded|\bRetrying in \d+s? ?\[Retry|[Cc]ould not resolve"
        r"|couldn't connect to '?https?:"
        r"|unable to resolve host|[Tt]emporary failure in name resolution|client socket has (?:timed out"
        r"|failed)"
        r"|^curl: \((?:5|6|7|28|35|52|56)\)|after connection broken by|^E: Failed to fetch"
        r"|Connection to \S+ timed out\. \(|\): [Nn]etwork is unreachable|Read timed out\. \(",
        "Retrying in 8s [Retry 5/5].",
    ),
)
