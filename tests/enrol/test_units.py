"""One description, three formats: whatever a path or a label holds comes out of each as it went in."""

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostler.domain.errors import BadInput
from ostler.units import launchd, systemd, windows
from ostler.units.service import Scope, Service

WORD = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"), max_size=40)
NASTY = st.text(st.sampled_from(" %$\"'\\;#{}=~\u00e4\u2028\U0001f40e@-:n"), max_size=12)
WORDS = st.one_of(WORD, NASTY)
EXECUTABLES = WORDS.map(lambda word: "/" + word.replace("/", "") + "/python")
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)
TASK = "{" + windows.NAMESPACE + "}"


def service(argv: tuple[str, ...], environment: dict[str, str] | None = None, **more: object) -> Service:
    given: dict[str, object] = {
        "name": "ostler-worker-w1",
        "title": "Ostler worker w1",
        "scope": "user",
        "user": "ann",
        "stop_s": 660.0,
        "log": "/var/log/w1.log",
        **more,
    }
    return Service(argv=argv, environment=environment or {}, **given)  # type: ignore[arg-type]


# systemd, read back as its manual says


def settings_of(text: str) -> dict[str, list[str]]:
    """Settings by their names; a line that ends with a backslash would go on, one that begins with # or ; is none."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n"):
        assert not line.endswith("\\")
        if "=" in line and line[0] not in "#;[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def split_words(line: str) -> list[str]:
    """Words as systemd.syntax(7) quotes them: quotes group, a backslash begins a C escape."""
    assert "\n" not in line
    words = []
    at = 0
    while at < len(line):
        if line[at] == " ":
            at += 1
            continue
        assert line[at] == '"', "every word of ours is quoted"
        at += 1
        word = ""
        while line[at] != '"':
            if line[at] == "\\":
                at += 1
                assert line[at] in '\\"', "no other escape is ever needed"
            word += line[at]
            at += 1
        words.append(word)
        at += 1
        assert at == len(line) or line[at] == " "
    return words


def without_specifiers(text: str) -> str:
    assert re.fullmatch(r"(?:[^%]|%%)*", text, re.DOTALL)
    return text.replace("%%", "%")


def without_variables(text: str) -> str:
    assert re.fullmatch(r"(?:[^$]|\$\$)*", text, re.DOTALL)
    return text.replace("$$", "$")


@given(EXECUTABLES, st.lists(WORDS, max_size=5), st.dictionaries(NAMES, WORDS, max_size=3))
@example('/opt/a$HOME\'s "100%" \\path/python', [";", "", "%h", "${HOME}", "\\", '"', "a\\nb"], {"PATH": "/a b:%t:$X"})
def test_a_unit_says_what_it_was_told(program: str, arguments: list[str], environment: dict[str, str]) -> None:
    settings = settings_of(systemd.unit(service((program, *arguments), environment)))
    [line] = settings["ExecStart"]
    first, *rest = (without_specifiers(word) for word in split_words(line))
    # The program's own path is the one word in which variables are not replaced, and the one that must be plain.
    words = [first, *(without_variables(word) for word in rest)]
    if words[0] == "/usr/bin/env":
        words = words[1:]
    else:
        assert not set(first) & set("$\"'\\")
    assert words == [program, *arguments]
    told = [without_specifiers(word) for line in settings.get("Environment", []) for word in split_words(line)]
    assert dict(pair.split("=", 1) for pair in told) == environment


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is missing: apt-get install systemd")
@pytest.mark.parametrize("scope", ["system", "user"])
def test_systemd_itself_finds_nothing_wrong_with_a_unit(scope: Scope, tmp_path: Path) -> None:
    told = (sys.executable, "-c", 'it\'s 100% "fine" $HOME \\ ä; {x}', ";", "")
    path = tmp_path / "ostler-worker-w1.service"
    environment = {"PATH": "/bin:/with space/100%", "LANG": "C.UTF-8"}
    path.write_text(systemd.unit(service(told, environment, scope=scope, user="root", outlived=True, final_codes=(4,))))
    options = ["--user"] if scope == "user" else []
    environment = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = ["systemd-analyze", *options, "--man=no", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    # The machine's own units, which this one comes after, are not its business.
    assert path.name not in done.stderr, done.stderr
    path.write_text(path.read_text() + "[Service]\nKillMode=nothing\n")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert path.name in done.stderr, "it would have told"


def test_what_runs_outlives_a_worker_that_is_killed_and_a_stop_waits_for_the_drain() -> None:
    settings = settings_of(systemd.unit(service(("/bin/true",), outlived=True, stop_s=660.0, final_codes=(4,))))
    assert settings["KillMode"] == ["process"]
    assert settings["TimeoutStopSec"] == ["660"]
    assert settings["Restart"] == ["on-failure"]
    assert settings["OOMPolicy"] == ["continue"]
    assert settings["RestartPreventExitStatus"] == ["4"]


def test_only_a_unit_of_the_machine_names_a_user() -> None:
    assert "User" not in settings_of(systemd.unit(service(("/bin/true",), scope="user")))
    assert settings_of(systemd.unit(service(("/bin/true",), scope="system", user="50%")))["User"] == ["50%%"]


# launchd


@given(EXECUTABLES, st.lists(WORDS, max_size=5), st.dictionaries(NAMES, WORDS, max_size=3))
def test_a_property_list_says_what_it_was_told(program: str, arguments: list[str], environment: dict[str, str]) -> None:
    found = plistlib.loads(launchd.plist(service((program, *arguments), environment)))
    assert found["ProgramArguments"] == [program, *arguments]
    assert found["EnvironmentVariables"] == environment


def test_a_property_list_keeps_the_worker_running_and_its_tasks_alive() -> None:
    found = plistlib.loads(launchd.plist(service(("/bin/true",), outlived=True, scope="system")))
    assert found["Label"] == "org.ostler.ostler-worker-w1"
    assert found["RunAtLoad"] is True and found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["AbandonProcessGroup"] is True and found["ExitTimeOut"] == 660
    assert found["UserName"] == "ann"


# Windows


def split_command_line(line: str) -> list[str]:
    """As CommandLineToArgvW does: backslashes count only before a quote."""
    words: list[str] = []
    word, quoted, begun, at = "", False, False, 0
    while at < len(line):
        if line[at] == "\\":
            run = len(line[at:]) - len(line[at:].lstrip("\\"))
            at += run
            begun = True
            if line[at : at + 1] == '"':
                word += "\\" * (run // 2)
                if run % 2:
                    word += '"'
                    at += 1
            else:
                word += "\\" * run
        elif line[at] == '"':
            quoted, begun, at = not quoted, True, at + 1
        elif line[at] in " \t" and not quoted:
            if begun:
                words.append(word)
            word, begun, at = "", False, at + 1
        else:
            word, begun, at = word + line[at], True, at + 1
    return [*words, word] if begun else words


def read_task(text: bytes) -> ElementTree.Element:
    assert text.startswith(b"\xff\xfe")
    return ElementTree.fromstring(text.decode("utf-16").partition("\n")[2])


def text_at(task: ElementTree.Element, path: str) -> str:
    found = task.find("/".join(TASK + part for part in path.split("/")))
    assert found is not None, path
    return found.text or ""


@given(EXECUTABLES, st.lists(WORDS, max_size=5))
def test_a_scheduled_task_says_what_it_was_told(program: str, arguments: list[str]) -> None:
    told = service((program, *arguments))
    if any(re.search(r"%[^%]+%", word) for word in told.argv):
        with pytest.raises(BadInput, match="Windows would replace"):
            windows.task(told)
        return
    task = read_task(windows.task(told))
    assert text_at(task, "Actions/Exec/Command") == program
    assert split_command_line(text_at(task, "Actions/Exec/Arguments")) == arguments


@pytest.mark.parametrize("word", ["C:\\%APPDATA%\\x", "$(Arg0)"])
def test_what_windows_would_replace_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match="rename"):
        windows.task(service(("C:\\python.exe", word)))


def test_a_scheduled_task_is_started_with_the_machine_and_looked_at_again() -> None:
    task = read_task(windows.task(service(("C:\\python.exe",), scope="system")))
    assert text_at(task, "Triggers/BootTrigger/Repetition/Interval") == "PT5M"
    assert text_at(task, "Settings/MultipleInstancesPolicy") == "IgnoreNew"
    assert text_at(task, "Settings/ExecutionTimeLimit") == "PT0S"
    assert text_at(task, "Principals/Principal/UserId") == windows.LOCAL_SYSTEM
    user = read_task(windows.task(service(("C:\\python.exe",))))
    assert text_at(user, "Triggers/LogonTrigger/UserId") == "ann"


# What none of them can say


@pytest.mark.parametrize("word", ["a\nb", "\x00", "\x7f", "\udc80", "\ufffe"])
def test_what_is_no_text_is_refused_before_anything_is_written(word: str) -> None:
    with pytest.raises(BadInput, match="no text"):
        service(("/bin/true", word))


@pytest.mark.parametrize("name", ["", "../x", "a b", ".x"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="cannot be called"):
        service(("/bin/true",), name=name)
