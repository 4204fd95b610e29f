"""llama-swap's configuration, carried over: its YAML in, our TOML out, and a remark for all that did not come along."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ostler.domain.errors import BadInput, Unreadable
from ostler.gateway import config
from ostler.gateway.llamaswap_model import ModelImport, Table, filters_of, loading_updates, mapping
from ostler.gateway.matrix import Matrix, Unclear
from ostler.gateway.spelling import spell
from ostler.gateway.toml import written

HEADER = "# Made from a configuration of llama-swap by `ostler models import`.\n\n"
NO_LOGS = "`ostler models logs` has each model's output, and the hub's own log level is an option of `ostler hub`"
NO_CAPTURE = "requests and answers are not kept"
DROPPED = {
    "startPort": "each worker gives its models free ports",
    "logLevel": NO_LOGS,
    "logTimeFormat": NO_LOGS,
    "logToStdout": NO_LOGS,
    "metricsMaxInMemory": "metrics are Prometheus's, at /metrics",
    "captureBuffer": NO_CAPTURE,
    "store": NO_CAPTURE,
    "ui": NO_CAPTURE,
    "performance": "workers measure their machines by themselves",
    "includeAliasesInList": "aliases are not listed; they can be called all the same",
    "upstream": "a request below /upstream/ loads its model, whatever its path",
    "profiles": "names cannot be rewritten while the hub runs; use `aliases`",
    "tailcat": "the gateway listens on TCP alone",
    "selectors": "a name stands for one model; use `aliases`, and `max_instances` for more of the same",
}
NEEDS = "say what each needs by `vram` or `gpus`, and `memory`: a model that asks for no GPU sees none"
OPEN = "without keys llama-swap lets everybody in; here callers show a user's token or one of `api_keys`"
TOP = (
    *("models", "groups", "matrix", "routing", "macros", "hooks", "peers", "apiKeys"),
    *("healthCheckTimeout", "globalTTL", "unloadTimeout", "sendLoadingState"),
)
GROUP = ("members", "swap", "exclusive", "persistent")
PEER = ("proxy", "models", "apiKey", "filters", "timeouts", "tailcatKey")
NO_SUCH_MODEL = "left out: there is no such model"
_NOT_HTTP = re.compile(r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://")


class Remark(NamedTuple):
    where: str
    what: str


def import_yaml(text: str) -> tuple[str, list[Remark]]:
    """The same configuration as TOML, and what of it is gone, changed or wrong."""
    given = _loaded(text)
    carried = _Import(_plain(given))
    tables = {"gateway": carried.gateway, "models": carried.models}
    found = [*carried.remarks, *_nulls(given["models"], "models"), *_complaints(tables)]
    return HEADER + written({name: table for name, table in tables.items() if table}), list(dict.fromkeys(found))


def _loaded(text: str) -> Table:
    try:
        import yaml
    except ImportError:
        raise BadInput("llama-swap's YAML needs PyYAML: pip install pyyaml", [("FILE", "PyYAML is missing")]) from None
    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise Unreadable(f"cannot be read as YAML: {error}", [("FILE", "not YAML")]) from None
    if not isinstance(given, dict) or not isinstance(given.get("models"), dict):
        raise BadInput("is no configuration of llama-swap: it has no `models`", [("models", "missing")])
    return {**given, "models": {name: {} if one is None else one for name, one in given["models"].items()}}


def _plain(value: Any) -> Any:
    """What TOML can hold: names are text, dates are text, and what is null is not there."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | set | tuple):
        return [_plain(item) for item in value if item is not None]
    return value if isinstance(value, str | int | float) else str(value)


def _nulls(value: Any, where: str) -> Iterator[Remark]:
    """Where it is said that a field is null, and not merely nothing said."""
    items = value.items() if isinstance(value, dict) else ()
    for name, item in items:
        place = f"{where}.{spell(str(name))}"
        if item is None and (".setParams." in place or ".metadata." in place):
            yield Remark(place, "left out: TOML has no null")
        yield from _nulls(item, place)


class _AnyEnvironment(dict[str, str]):
    """Where the file will be used, all variables are set that it wants: each to another number, as keys differ."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        self[name] = str(1 + len(self))
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


def _complaints(tables: Mapping[str, Table]) -> Iterable[Remark]:
    try:
        config.read(tables["models"], tables["gateway"], _AnyEnvironment())
    except BadInput as error:
        return [Remark(where, f"must be corrected: {what}") for where, what in error.errors]
    return []


class _Import:
    def __init__(self, given: Table) -> None:
        self.remarks: list[Remark] = []
        self.gateway: Table = {"scheduler": "fifo"}
        self.models: Table = {}
        self._given = given
        self._macros = mapping(given.get("macros"))
        self._models()
        self._gateway()
        self._routing()
        self._unknown_keys(given, "", {*DROPPED, *TOP})
        for key, why in DROPPED.items():
            if key in given:
                self._remark(key, f"left out: {why}")

    def _remark(self, where: str, what: str) -> None:
        self.remarks.append(Remark(where, what))

    def _part(self, table: Table, key: str, known: Collection[str] | None, where: str = "") -> Table:
        """A mapping inside another; what should be one, and is not, and what it has that is not known, is told."""
        given, place = table.get(key, {}), where + spell(key)
        if not isinstance(given, dict):
            self._remark(place, "left out: it is no mapping")
        elif known is not None:
            self._unknown_keys(given, f"{place}.", known)
        return mapping(given)

    def _unknown_keys(self, table: Table, where: str, known: Collection[str]) -> None:
        for key in table:
            if key not in known:
                self._remark(where + spell(key), "left out: it is not known here")

    def _models(self) -> None:
        for name in self._given["models"]:
            given = self._part(self._given["models"], name, None, "models.")
            one = ModelImport(name, given, self._given, self._macros)
            self.models[name] = one.table()
            self.remarks += [Remark(where, what) for where, what in one.remarks]
        if self.models:
            self._remark("models", NEEDS)
        listed = [model.get("aliases") for model in self.models.values()]
        aliases = [alias for one in listed if isinstance(one, list) for alias in one]
        self._names = {*self.models, *(alias for alias in aliases if isinstance(alias, str))}

    def _configured(self, names: Any, where: str) -> Any:
        """The models among these names. llama-swap's own example names some that are not in the file."""
        if not isinstance(names, list):
            return names
        strangers = [name for name in names if isinstance(name, str) and name not in self._names]
        for name in dict.fromkeys(strangers):
            self._remark(f"{where}.{spell(name)}", NO_SUCH_MODEL)
        return [name for name in names if name not in strangers]

    def _gateway(self) -> None:
        given = self._given
        if "sendLoadingState" in given:
            self.gateway["loading_updates"] = loading_updates(given["sendLoadingState"])
        hooks = self._part(given, "hooks", ["on_startup"])
        startup = self._part(hooks, "on_startup", ["preload", "profile"], "hooks.")
        if startup.get("profile"):
            self._remark("hooks.on_startup.profile", f"left out: {DROPPED['profiles']}")
        if preload := self._configured(startup.get("preload"), "hooks.on_startup.preload"):
            self.gateway["preload"] = preload
        if given.get("apiKeys"):
            self.gateway["api_keys"] = given["apiKeys"]
        else:
            self._remark("apiKeys", OPEN)
        if self._macros:
            self.gateway["macros"] = self._macros
        peers = self._part(given, "peers", None)
        if peers:
            found = {name: self._part(peers, name, PEER, "peers.") for name in peers}
            strange = [name for name, peer in found.items() if _NOT_HTTP.match(str(peer.get("proxy", "")))]
            for name in strange:
                self._remark(f"{spell('peers', name)}.proxy", "left out, and its peer: peers are reached by HTTP")
            self.gateway["peers"] = {name: self._peer(found[name], name) for name in found if name not in strange}

    def _peer(self, given: Table, name: str) -> Table:
        where = spell("peers", name) + "."
        if "timeouts" in given:
            self._remark(f"{where}timeouts", "left out: timeouts of connections cannot be set")
        found = {"url": given.get("proxy"), "models": given.get("models"), "api_key": given.get("apiKey")}
        filters, remarks = filters_of(mapping(given.get("filters")), f"{where}filters.", str)
        self.remarks += [Remark(*one) for one in remarks]
        return {key: value for key, value in {**found, "filters": filters}.items() if value}

    def _routing(self) -> None:
        routing = self._part(self._given, "routing", ["scheduler", "router"])
        self._scheduler(self._part(routing, "scheduler", ["use", "settings"], "routing."))
        router = self._part(routing, "router", ["use", "settings"], "routing.")
        settings = self._part(router, "settings", ["groups", "matrix"], "routing.router.")
        given = {**self._given, **settings}
        if given.get("matrix") and router.get("use", "matrix") == "matrix":
            self._matrix(self._part(given, "matrix", ["vars", "sets", "evict_costs"]))
        else:
            self._groups(self._part(given, "groups", None))

    def _scheduler(self, given: Table) -> None:
        use = given.get("use", "fifo")
        if use in ("fifo", "serial"):
            self.gateway["scheduler"] = use
        else:
            self._remark("routing.scheduler.use", f"{use!r} is not known here: 'fifo' is used instead")
        fifo = self._part(
            self._part(given, "settings", ["fifo"], "routing.scheduler."), "fifo", ["priority"], "routing.scheduler."
        )
        for name, priority in self._part(fifo, "priority", None, "routing.scheduler.fifo.").items():
            if name in self.models:
                self.models[name]["priority"] = priority
            else:
                self._remark(f"routing.scheduler.fifo.priority.{spell(name)}", NO_SUCH_MODEL)

    def _groups(self, given: Table) -> None:
        """Those of no group are, for llama-swap, a group of their own."""
        groups: Table = {}
        for name in given:
            group = self._part(given, name, GROUP, "groups.")
            members = self._configured(group.get("members"), f"{spell('groups', name)}.members")
            if members == [] != group["members"]:
                self._remark(spell("groups", name), "left out: it has no members that are models")
                continue
            groups[name] = {key: members if key == "members" else group[key] for key in GROUP if key in group}
        members = [group.get("members") for group in groups.values()]
        grouped = {str(member) for listed in members if isinstance(listed, list) for member in listed}
        others = [name for name in self.models if name not in grouped]
        if others and len(self.models) > 1:
            groups["default" if "default" not in groups else "(default)"] = {"members": others}
        if groups:
            self.gateway["groups"] = groups

    def _matrix(self, given: Table) -> None:
        """Whoever is in no set runs, for llama-swap, alone."""
        models = {name: str(model) for name, model in mapping(given.get("vars")).items()}
        expressions = {name: str(text) for name, text in mapping(given.get("sets")).items()}
        matrix = Matrix(expressions, lambda name: models.get(name, name))
        found: dict[tuple[str, ...], None] = {}
        for name in expressions:
            try:
                found |= dict.fromkeys(matrix.sets(name))
            except Unclear as error:
                self._remark(f"matrix.sets.{spell(name)}", f"left out: it {error}")
        kept = [tuple(self._configured(list(members), "matrix.sets")) for members in found]
        sets = dict.fromkeys(members for members in kept if members)
        together = {name for members in sets for name in members}
        sets |= {(name,): None for name in self.models if name not in together}
        self.gateway["sets"] = [list(members) for members in sets]
        if costs := mapping(given.get("evict_costs")):
            given_for = {models.get(name, name): cost for name, cost in costs.items()}
            of_models = self._configured(list(given_for), "matrix.evict_costs")
            if of_models:
                self.gateway["evict_costs"] = {name: given_for[name] for name in of_models}
