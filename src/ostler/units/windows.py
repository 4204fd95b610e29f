"""A service as a scheduled task of Windows, in the XML that `schtasks` reads."""

import re
import subprocess
from xml.etree import ElementTree

from ostler.domain.errors import BadInput
from ostler.units.service import Service

NAMESPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
LOCAL_SYSTEM = "S-1-5-18"
LOOK_AGAIN = "PT5M"
_REPLACED = re.compile(r"%[^%]+%|\$\(Arg\d+\)")
"""What Windows would put something else for; there is no way to tell it not to."""


def task(service: Service) -> bytes:
    """UTF-16 with its mark, which is what `schtasks` takes for certain."""
    for word in service.argv:
        if _REPLACED.search(word):
            raise BadInput(f"a scheduled task cannot be told {word!r}: Windows would replace a part of it; rename it")
    root = ElementTree.Element("Task", {"version": "1.2", "xmlns": NAMESPACE})
    _put(root, {"RegistrationInfo": {"Description": service.title}, "Triggers": _triggers(service)})
    principal = _put(root, {"Principals": {"Principal": _principal(service)}})
    principal[0].set("id", "Author")
    _put(root, {"Settings": _settings()})
    arguments = subprocess.list2cmdline(service.argv[1:])
    actions = _put(root, {"Actions": {"Exec": {"Command": service.argv[0], "Arguments": arguments}}})
    actions.set("Context", "Author")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-16"?>\n{text}\n'.encode("utf-16")


def _triggers(service: Service) -> dict[str, object]:
    # Looked at again and again: an exit code other than 0 is no failure to Windows, so nothing else starts it anew.
    again: dict[str, object] = {"Repetition": {"Interval": LOOK_AGAIN, "StopAtDurationEnd": "false"}}
    if service.scope == "system":
        return {"BootTrigger": again}
    return {"LogonTrigger": {**again, "UserId": service.user}}


def _principal(service: Service) -> dict[str, object]:
    if service.scope == "system":
        return {"UserId": LOCAL_SYSTEM, "RunLevel": "HighestAvailable"}
    return {"UserId": service.user, "LogonType": "InteractiveToken", "RunLevel": "LeastPrivilege"}


def _settings() -> dict[str, object]:
    return {
        "MultipleInstancesPolicy": "IgnoreNew",
        "DisallowStartIfOnBatteries": "false",
        "StopIfGoingOnBatteries": "false",
        "StartWhenAvailable": "true",
        "ExecutionTimeLimit": "PT0S",
        "Priority": "5",
    }


def _put(parent: ElementTree.Element, tree: dict[str, object]) -> ElementTree.Element:
    """The last of the elements that were put there."""
    element = parent
    for name, content in tree.items():
        element = ElementTree.SubElement(parent, name)
        if isinstance(content, dict):
            _put(element, content)
        else:
            element.text = str(content)
    return element
