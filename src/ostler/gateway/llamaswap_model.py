"""One model of llama-swap's configuration, carried over."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ostler.gateway.spelling import spell

PORT = "${PORT}"
PLACES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
DEFAULT_LOAD_S, LEAST_LOAD_S, DEFAULT_STOP_S = 120, 15, 10
SAME = {
    "name": "name",
    "description": "description",
    "unlisted": "unlisted",
    "useModelName": "upstream_name",
    "checkEndpoint": "check",
    "metadata": "metadata",
}
"""What only has another name, if that."""
ELSEWHERE = (
    *"macros cmd cmdStop proxy env ttl unloadTimeout healthCheckTimeout filters concurrencyLimit capabilities".split(),
    *("sendLoadingState", "aliases"),
)
DROPPED = {
    "timeouts": "timeouts of connections cannot be set",
    "compat": "a WebSocket counts as a request like any other",
}
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_-]+)\}")
_DRIVE = re.compile(r"\b[A-Za-z]:\\")
_LOOPBACK = re.compile(r"http://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1?\])(?::(\$\{PORT\}|\d+))?/?")

Table = dict[str, Any]
Remarks = list[tuple[str, str]]


class ModelImport:
    """`top` is the whole configuration, for what it says of all models; `macros` are those of all."""

    def __init__(self, name: str, given: Table, top: Table, macros: Mapping[str, Any]) -> None:
        self.remarks: Remarks = []
        self._name = name
        self._where = spell("models", name)
        self._given = given
        self._top = top
        own = mapping(given.get("macros"))
        self._every = {**macros, **own}
        self._own = {key: value for key, value in self._every.items() if key in own or _leads_to(own, key, self._every)}
        """Its own macros, and those of all that mean something else because of them: we have no macros of one model."""

    def table(self) -> Table:
        found: Table = {"cmd": _lines(self._put(self._given.get("cmd", "")))}
        if stop := self._given.get("cmdStop"):
            found["cmd_stop"] = _lines(self._put(stop))
        if _DRIVE.search(str(found["cmd"])):
            self._remark("cmd", "changed: a backslash escapes what follows it; write paths with '/'")
        port = self._port()
        if port:
            found["port"] = port
        found |= {ours: self._put(self._given[theirs]) for theirs, ours in SAME.items() if theirs in self._given}
        if "aliases" in self._given:
            found["aliases"] = self._aliases(self._put(self._given["aliases"]))
        found |= {"env": self._env(), "filters": self._filters(found), **self._times(), **self._limit()}
        if "sendLoadingState" in self._given:
            found["loading_updates"] = loading_updates(self._given["sendLoadingState"])
        if capabilities := self._given.get("capabilities"):
            found["metadata"] = {**mapping(found.get("metadata")), "capabilities": capabilities}
        for key, why in DROPPED.items():
            if key in self._given:
                self._remark(key, f"left out: {why}")
        for key in self._given:
            if key not in (*SAME, *ELSEWHERE, *DROPPED):
                self._remark(spell(key), "left out: it is not known here")
        return {key: value for key, value in self._without_port(found, port).items() if value not in ({}, [], "")}

    def _remark(self, key: str, what: str) -> None:
        self.remarks.append((f"{self._where}.{key}", what))

    def _put(self, value: Any) -> Any:
        return _put_in(value, self._own)

    def _port(self) -> int:
        proxy = str(_put_in(self._given.get("proxy", ""), self._every))
        found = _LOOPBACK.fullmatch(proxy)
        if proxy and found is None:
            what = "left out: a model's server listens on its own machine; one elsewhere is a peer, [gateway.peers]"
            self._remark("proxy", what)
        if found is None or found[1] == PORT:
            return 0
        return int(found[1] or 80)

    def _aliases(self, given: Any) -> Any:
        """Some files write an alias as a mapping with its id."""
        if not isinstance(given, list):
            return given
        if any(isinstance(alias, dict) and alias.keys() > {"id"} for alias in given):
            self._remark("aliases", "changed: an alias is a name, and nothing else can be said of it")
        return [alias.get("id", alias) if isinstance(alias, dict) else alias for alias in given]

    def _env(self) -> dict[str, str]:
        found: dict[str, str] = {}
        given = self._given.get("env", [])
        for text in given if isinstance(given, list) else []:
            name, _, value = str(self._put(text)).partition("=")
            if name in PLACES:
                self._remark(
                    f"env.{name}", "left out: its worker says which GPUs it has; ask for them by `gpus` or `vram`"
                )
            else:
                found[name] = value
        return found

    def _filters(self, found: Table) -> Table:
        """The names for which there are parameters are names of the model."""
        given = mapping(self._given.get("filters"))
        by_name = {str(_put_in(name, {"MODEL_ID": self._name})) for name in mapping(given.get("setParamsByID"))}
        aliases = found.get("aliases", [])
        if by_name and isinstance(aliases, list):
            found["aliases"] = [*aliases, *(name for name in sorted(by_name) if name not in (self._name, *aliases))]
        known = {key: value for key, value in given.items() if key != "setParamsByID"}
        filters, remarks = filters_of(known, f"{self._where}.filters.", lambda text: str(_put_in(text, self._every)))
        self.remarks += remarks
        if by_name:
            self._remark("filters.setParamsByID", "left out: the names are kept as aliases, not what is set for each")
        return {key: self._put(value) for key, value in filters.items()}

    def _times(self) -> Table:
        given, top = self._given, self._top
        ttl = given.get("ttl", -1)
        ttl = top.get("globalTTL", 0) if ttl == -1 else ttl
        load = given.get("healthCheckTimeout") or top.get("healthCheckTimeout", DEFAULT_LOAD_S)
        load = max(load, LEAST_LOAD_S) if isinstance(load, int) else load
        stop = given.get("unloadTimeout") or top.get("unloadTimeout") or DEFAULT_STOP_S
        found = {"ttl": (ttl, 0), "load_timeout": (load, DEFAULT_LOAD_S), "stop_timeout": (stop, DEFAULT_STOP_S)}
        return {key: value for key, (value, usual) in found.items() if value != usual}

    def _limit(self) -> Table:
        limit = self._given.get("concurrencyLimit", 0)
        return {"request_limit": limit} if limit else {}

    def _without_port(self, found: Table, port: int) -> Table:
        """Which port it gets, only the worker knows."""
        if port:
            return found
        kept = dict(found)
        for key, value in found.items():
            if key in ("cmd", "cmd_stop"):
                continue
            if isinstance(value, dict):
                kept[key] = {name: item for name, item in value.items() if not self._names_port(item)}
                gone = [f"{key}.{spell(name)}" for name in value if name not in kept[key]]
            else:
                gone = [key] if self._names_port(value) else []
                kept = {name: item for name, item in kept.items() if name not in gone}
            for place in gone:
                self._remark(
                    place, f"left out: {PORT} is known only in cmd; set a variable by cmd = 'env NAME={PORT} …'"
                )
        return kept

    def _names_port(self, value: Any) -> bool:
        if isinstance(value, dict | list):
            return any(map(self._names_port, value.values() if isinstance(value, dict) else value))
        return isinstance(value, str) and PORT in str(_put_in(value, self._every))


def filters_of(given: Table, where: str, full: Callable[[str], str]) -> tuple[Table, Remarks]:
    """Of a model or a peer. `model` stays out of them: nobody touches it."""
    text = full(str(given.get("stripParams") or given.get("strip_params") or ""))
    strip = sorted({name.strip() for name in text.split(",")} - {"", "model"})
    put = {name: value for name, value in mapping(given.get("setParams")).items() if name != "model"}
    known = ("stripParams", "strip_params", "setParams")
    remarks = [(where + spell(key), "left out: it is not known here") for key in given if key not in known]
    return {key: value for key, value in {"strip": strip, "set": put}.items() if value}, remarks


def loading_updates(given: Any) -> Any:
    """llama-swap sends text that a chat shows, or nothing."""
    return "text" if given is True else given


def mapping(value: Any) -> Table:
    """The value where it is what it should be."""
    return value if isinstance(value, dict) else {}


def _leads_to(own: Mapping[str, Any], name: str, every: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether this macro uses, however far down, one of the model's own."""
    used = _REFERENCE.findall(every[name]) if isinstance(every.get(name), str) else []
    return any(one in own or (depth < len(every) and _leads_to(own, one, every, depth + 1)) for one in used)


def _put_in(value: Any, macros: Mapping[str, Any], depth: int = 0) -> Any:
    """The value with these macros put in; others stay. One that leads to itself is left to be complained of."""
    if isinstance(value, dict):
        return {name: _put_in(item, macros) for name, item in value.items()}
    if isinstance(value, list):
        return [_put_in(item, macros) for item in value]
    if not isinstance(value, str) or depth > len(macros):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole is not None and whole[1] in macros:
        return _put_in(macros[whole[1]], macros, depth + 1)

    def put(found: re.Match[str]) -> str:
        return _text(_put_in(macros[found[1]], macros, depth + 1)) if found[1] in macros else found[0]

    return _REFERENCE.sub(put, value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lines(value: Any) -> Any:
    """A command as it is best read: what goes over several lines ends in a line of its own."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    return f"{text}\n" if "\n" in text else text
