"""~/.ssh/config with Include, and nothing of fabric's own."""

import os
from pathlib import Path

import pytest

from orchestrator.connection.sshconfig import load
from orchestrator.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config"
    path.write_text(text)
    return path


def test_an_alias_gives_its_host(tmp_path: Path):
    text = "Host pve\n  HostName 10.1.2.6\n  Port 2222\n  User admin\n  ProxyJump b\n"
    says = load(write(tmp_path, text)).base_ssh_config.lookup("pve")
    assert (says["hostname"], says["port"], says["user"], says["proxyjump"]) == (
        "10.1.2.6",
        "2222",
        "admin",
        "b",
    )


def test_included_files_count_and_end_with_themselves(tmp_path: Path):
    (tmp_path / "more").write_text("Host pve\n  Port 2222\n")
    config = load(write(tmp_path, f"Include {tmp_path}/more\nUser admin\nHost other\n  Port 1\n"))
    assert config.base_ssh_config.lookup("pve")["port"] == "2222"
    assert config.base_ssh_config.lookup("pve")["user"] == "admin"
    assert config.base_ssh_config.lookup("x")["user"] == "admin"
    assert "port" not in config.base_ssh_config.lookup("x")


def test_a_missing_file_or_include_is_empty(tmp_path: Path):
    assert load(tmp_path / "none").base_ssh_config.lookup("x") == {"hostname": "x"}
    assert load(write(tmp_path, "Include none/*\n")).base_ssh_config.lookup("x") == {"hostname": "x"}


@pytest.mark.parametrize("is_included", [True, False])
@pytest.mark.parametrize(("kind", "why"), [("pipe", "it is a named pipe"), ("large", "larger than 8 MiB")])
def test_what_is_there_but_is_no_config_is_told_and_not_passed_over(tmp_path: Path, kind, why, is_included):
    path = tmp_path / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"#" * (8 << 20) + b"\n")
    with pytest.raises(ConfigError, match=f"{path}: the ssh config cannot be read: .*{why}"):
        load(write(tmp_path, f"Include {path}\n") if is_included else path)


def test_what_ssh_too_reads_as_empty_is_empty(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for name in (tmp_path / "folder", Path(os.devnull), tmp_path / "none" / "x", write(tmp_path, "") / "x"):
        assert load(name).base_ssh_config.lookup("x") == {"hostname": "x"}


def test_a_file_that_includes_itself_ends(tmp_path: Path):
    path = tmp_path / "config"
    path.write_text(f"Include {path}\nUser admin\n")
    assert load(path).base_ssh_config.lookup("x")["user"] == "admin"


def test_an_unreadable_config_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="the ssh config is not readable"):
        load(write(tmp_path, "nonsense\n"))


def test_without_a_user_anywhere_it_is_root(tmp_path: Path):
    assert load(tmp_path / "none").user == "root"
