"""venv from an index: a real pip, a real index on loopback that wants a login, and no word of the login."""

from __future__ import annotations

import base64
import socket
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from orchestrator.connection import GuestClient, LocalShell
from orchestrator.guest.venvs import users
from orchestrator.inventory import Target
from tests import wheels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = ("someone", "hunter2hunter2")


class Index(SimpleHTTPRequestHandler):
    """Serves folders as pages of links, to who knows the password."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="index"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The index's address without the login."""
    folder = tmp_path / "index" / "simple" / "alpha"
    folder.mkdir(parents=True)
    wheels.make(folder, "alpha", "1.0")
    handler = partial(Index, directory=str(tmp_path / "index"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}/simple/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_index_with_a_login_is_used_and_its_password_is_nowhere(index, tmp_path):
    state = tmp_path / "state"
    client = GuestClient(LocalShell(), Target(host=None, ct=None, state_dir=str(state)))
    call = {"requirements": ["alpha"], "index": f"http://{':'.join(LOGIN)}@{index}", "no_deps": True}
    body = {
        "key": "0123456789abcdef",
        "installs": [call],
        "constraints": "alpha==1.0\n",
        "imports": ["alpha"],
    }
    stream = client.watch(body, verb="venv")
    said = []
    while not stream.is_ended:
        if (message := stream.read(120)) is not None:
            said.append(message)
    stream.close()
    assert said[-1]["packages"]["alpha"] == "1.0"
    assert any("alpha-1.0-py3-none-any.whl" in str(message.get("line")) for message in said)
    assert LOGIN[1] not in str(said)
    stamp = state / "venvs" / "0123456789abcdef" / "dflashctl.json"
    assert LOGIN[1] not in stamp.read_text()

    (told,) = client.call("checkup", {"python": None}, timeout_s=60)
    assert told["trainer_python"] == said[-1]["python"], "the doctor looks at what launch would take"
    (told,) = client.call("checkup", {"python": "python3"}, timeout_s=60)
    assert told["trainer_python"] == "python3"


def test_a_cut_while_pip_waits_ends_it_and_leaves_nothing(tmp_path):
    state = tmp_path / "state"
    home = state / "venvs" / "0123456789abcdef"
    client = GuestClient(LocalShell(), Target(host=None, ct=None, state_dir=str(state)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple/"
        call = {"requirements": ["alpha"], "index": url, "no_deps": True}
        body = {"key": home.name, "installs": [call], "constraints": "alpha==1.0\n", "imports": ["alpha"]}
        stream = client.watch(body, verb="venv")
        silent.settimeout(60)
        link, _ = silent.accept()  # pip has asked, and nobody answers
        assert users(home) != []
        stream.close()
        stop_at = time.monotonic() + 240
        while users(home):
            assert time.monotonic() < stop_at
            time.sleep(0.05)
        link.close()
    assert not (home / "dflashctl.json").exists(), "what may be left of it is nobody's"
    assert not (state / "venv").exists()
