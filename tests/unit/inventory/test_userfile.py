"""A file that a person names holds nobody up and fills no memory, whatever it is."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from orchestrator import playbook, yamlfile
from orchestrator.cli.specifying import read_config, read_env
from orchestrator.connection import sshconfig
from orchestrator.errors import ConfigError, InventoryError, PlaybookError
from orchestrator.inventory import Inventory
from orchestrator.notify import settings as notify_settings
from orchestrator.provision.files import read_lock
from orchestrator.userfile import read_bytes, read_text


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    os.mkfifo(path, 0o600)
    return path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return tmp_path / "plain.yaml"


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (playbook.load, PlaybookError),
        (lambda path: Inventory.load([path]), InventoryError),
        (read_lock, ConfigError),
        (yamlfile.read, ConfigError),
    ],
    ids=["playbook", "inventory", "lock", "yaml"],
)
def test_a_pipe_is_refused_at_once_with_what_it_is(pipe, read, error):
    with pytest.raises(error) as caught:
        read(pipe)
    assert f"{pipe}: cannot be read: it is a named pipe; put a plain file in its place" in str(caught.value)


def test_a_pipe_in_the_place_of_the_messages_file_is_refused(tmp_path):
    (tmp_path / "dflashctl").mkdir()
    os.mkfifo(tmp_path / "dflashctl" / notify_settings.NAME, 0o600)
    with pytest.raises(ConfigError, match="it is a named pipe"):
        notify_settings.load({"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_link_to_a_plain_file_is_one(plain, tmp_path):
    plain.write_bytes(b"a: 1\r\nb: 2\r\n")
    (tmp_path / "link.yaml").symlink_to(plain)
    assert read_text(tmp_path / "link.yaml") == "a: 1\nb: 2\n"


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/dev/null")])
def test_a_device_is_refused(path):
    with pytest.raises(OSError, match="it is a device; put a plain file in its place"):
        read_bytes(path)


def test_a_socket_and_a_folder_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        read_bytes(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="it is a socket"):
            read_bytes(tmp_path / "s")


def test_as_much_as_the_limit_is_read_and_not_a_byte_more(plain):
    plain.write_bytes(b"x" * 4096)
    assert len(read_bytes(plain, limit=4096)) == 4096
    with pytest.raises(OSError, match=r"larger than 0\.00390\d+ MiB; is it the file you mean\?"):
        read_bytes(plain, limit=4095)


def test_a_log_in_the_place_of_a_playbook_is_not_read(plain):
    with plain.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PlaybookError, match="larger than 1 MiB"):
        playbook.load(plain)
    with pytest.raises(ConfigError, match="larger than 8 MiB"):
        read_env(None, [plain])


def test_a_shell_may_give_what_a_command_prints_in_the_place_of_a_file(pipe):
    writer = threading.Thread(target=lambda: pipe.write_text("TOKEN=word\n"))
    writer.start()
    assert read_env(None, [pipe]) == {"TOKEN": "word"}
    writer.join()
    with pytest.raises(ConfigError, match="larger than 8 MiB"):
        read_env(None, [Path("/dev/zero")])
    assert read_env(None, [Path("/dev/null")]) == {}


def test_a_configuration_may_come_from_a_pipe_too(tmp_path):
    path = tmp_path / "c.toml"
    os.mkfifo(path, 0o600)
    writer = threading.Thread(target=lambda: path.write_text("[optim]\nlr = 1e-4\n"))
    writer.start()
    assert read_config(str(path)) == (str(path), "[optim]\nlr = 1e-4\n")
    writer.join()


def test_a_pipe_for_an_ssh_config_is_refused_and_a_folder_left_out(pipe):
    with pytest.raises(ConfigError, match="the ssh config cannot be read: it is a named pipe"):
        sshconfig.expand(pipe)
    assert sshconfig.expand(pipe.parent) == ""
