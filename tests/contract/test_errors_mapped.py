"""Every public exception of paramiko, invoke and fabric becomes one of ours."""

import importlib
import inspect
import pkgutil

import fabric
import invoke
import paramiko
import pytest

from orchestrator.connection.translate import FOREIGN, TRANSLATIONS, translate, translating
from orchestrator.errors import BlindError, HostDenied, HostUnreachable, OrchestratorError

# Never leave their library, or are of its other half.
INTERNAL = {
    "paramiko.packet.NeedRekeyException": "caught by the transport's own thread",
    "paramiko.ber.BERException": "of the key parser, which turns it into SSHException",
    "paramiko._winapi.WindowsError": "of another system",
}


def exceptions_of(package) -> list[type[BaseException]]:
    modules = [package]
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "vendor" in info.name or info.name.endswith(("_winapi", "win_openssh", "win_pageant", "__main__")):
            continue
        modules.append(importlib.import_module(info.name))
    found = {
        item
        for module in modules
        for item in vars(module).values()
        if inspect.isclass(item)
        and issubclass(item, BaseException)
        and item.__module__.split(".")[0] == package.__name__
        and f"{item.__module__}.{item.__name__}" not in INTERNAL
    }
    return sorted(found, key=lambda item: (item.__module__, item.__name__))


ALL = [each for package in (paramiko, invoke, fabric) for each in exceptions_of(package)]


def has_no_init(foreign: type[BaseException]) -> bool:
    """Whether it is made from a text, like any exception."""
    mine = [
        base for base in foreign.__mro__ if base.__module__.split(".")[0] in ("paramiko", "invoke", "fabric")
    ]
    return not any("__init__" in vars(base) for base in mine)


def test_the_walk_finds_them():
    names = {each.__name__ for each in ALL}
    assert {
        "SSHException",
        "AuthFailure",
        "NoValidConnectionsError",
        "CommandTimedOut",
        "GroupException",
    } <= names
    assert len(ALL) > 30


@pytest.mark.parametrize("foreign", ALL, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_every_foreign_exception_is_translated(foreign: type[BaseException]):
    assert any(base in TRANSLATIONS for base in foreign.__mro__), f"add {foreign} to TRANSLATIONS"
    assert issubclass(foreign, FOREIGN)


@pytest.mark.parametrize(
    "foreign", [each for each in ALL if has_no_init(each)], ids=lambda each: each.__name__
)
def test_a_translation_is_one_line_that_begins_with_the_place(foreign: type[BaseException]):
    ours = translate(foreign("first\nsecond"), "10.1.2.6")
    assert isinstance(ours, OrchestratorError)
    assert ours.message.startswith("10.1.2.6: ")
    assert "\n" not in ours.message


@pytest.mark.parametrize(
    ("cause", "ours", "text"),
    [
        (
            ConnectionRefusedError(111, "Connection refused"),
            HostUnreachable,
            "h: connection refused; is sshd running",
        ),
        (TimeoutError(), HostUnreachable, "h: no answer within the limit"),
        (OSError(113, "No route to host"), HostUnreachable, "h: no route to host"),
        (EOFError(), HostUnreachable, "h: the connection was closed"),
        (paramiko.ChannelException(1, "Administratively prohibited"), HostDenied, "MaxSessions"),
        (paramiko.AuthenticationException("no"), HostDenied, "h: no"),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("10.1.2.6", 22): OSError(111, "Connection refused")}
            ),
            HostUnreachable,
            "h: port 22: connection refused",
        ),
    ],
)
def test_a_translation_says_what_happened_and_where(cause: Exception, ours: type[BlindError], text: str):
    with pytest.raises(ours) as caught, translating("h"):
        raise cause
    assert type(caught.value) is ours
    assert text in str(caught.value)
    assert caught.value.__cause__ is cause


def test_what_is_ours_already_or_a_bug_passes_through():
    for error in (HostDenied("x"), KeyError("x"), AssertionError("x")):
        with pytest.raises(type(error)) as caught, translating("h"):
            raise error
        assert caught.value is error
