"""What an inventory entry may say. Frozen; `name` is the entry's key in the file."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

CONTAINER_STATE_DIR = "/var/lib/dflashctl"
LOCAL_STATE_DIR = "~/.local/state/dflashctl/guest"
MAX_CT = 999_999_999

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(frozen=True)  # frozen marks what the file's key says, not a key of its own

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name == "local":
            raise ValueError('a name has letters, digits, "_", "-" and "." only, and is not "local"')
        return name


class Host(_Entry):
    """A Proxmox host reached by ssh. `user` and `port` None: as ~/.ssh/config says, else root and 22."""

    address: str = Field(description="a host name, an IP address or an alias of ~/.ssh/config")
    user: str | None = Field(default=None, min_length=1, description='a user name, such as "root"')
    port: int | None = Field(default=None, ge=1, le=65535, description="1 to 65535")
    identity: str | None = Field(default=None, min_length=1, description="the path of a private key file")
    host_key: str | None = Field(
        default=None, description='a fingerprint as `ssh-keygen -lf` prints it, "SHA256:" and 43 characters'
    )
    jump: str | None = Field(
        default=None, min_length=1, description="a host of the inventory, or [user@]address[:port]"
    )
    become: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        min_length=1,
        description='a list of words put before pct, such as ["sudo", "-n"]',
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if not _ADDRESS.fullmatch(address):
            raise ValueError("not an address")
        return address

    @field_validator("user")
    @classmethod
    def _check_user(cls, user: str | None) -> str | None:
        if user is not None and (
            user.startswith("-") or not user.isprintable() or any(c in user for c in " @/:")
        ):
            raise ValueError("not a user name")
        return user

    @field_validator("host_key")
    @classmethod
    def _check_fingerprint(cls, fingerprint: str | None) -> str | None:
        if fingerprint is not None and not _FINGERPRINT.fullmatch(fingerprint.rstrip("=")):
            raise ValueError("not a SHA256 fingerprint")
        return fingerprint.rstrip("=") if fingerprint else fingerprint


class Container(_Entry):
    """An LXC container on a host. Paths are the container's; `config` and `env_file` are of this machine."""

    host: str = Field(
        description='a host of the inventory, or "local" for the machine that dflashctl runs on'
    )
    ct: int | None = Field(
        default=None, ge=100, le=MAX_CT, description="the container's id in `pct list`, 100 or more"
    )
    gpus: tuple[int, ...] | None = Field(
        default=None,
        strict=False,
        description="a list of GPU indices as the container counts them, such as [0, 1]",
    )
    python: str | None = Field(
        default=None,
        min_length=1,
        description="the Python that has torch, for the trainer; default what `provision` made, else python3",
    )
    guest_python: str = Field(
        default="python3", min_length=1, description="any Python 3.10 or newer, for the guest"
    )
    state_dir: str | None = Field(default=None, description="an absolute path in the container")
    checkpoint_dir: str | None = Field(
        default=None,
        description="an absolute path in the container; left out, it is inside the run directory",
    )
    config: str | None = Field(default=None, min_length=1, description="a trainer config by name or path")
    env_file: str | None = Field(
        default=None, min_length=1, description="a file of NAME=value lines on this machine"
    )
    mask: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description='a list of names of variables to mask in all output, such as ["LICENCE*", "!CACHE_KEY"]',
    )

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if gpus is not None and (len(set(gpus)) != len(gpus) or any(gpu < 0 for gpu in gpus)):
            raise ValueError("each index is 0 or more and stands once")
        return gpus

    @field_validator("state_dir", "checkpoint_dir")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path is not None and (not path.startswith(("/", "~/")) or "\0" in path or "\n" in path):
            raise ValueError("not an absolute path")
        return path
