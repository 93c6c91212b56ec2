"""Messages to a person who is not looking: what is worth one, when it may go, and the way there."""

from orchestrator.notify.message import Kind, Message, Severity
from orchestrator.notify.settings import Settings
from orchestrator.notify.sink import NotifySink

__all__ = ["Kind", "Message", "NotifySink", "Settings", "Severity"]
