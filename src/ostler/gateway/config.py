"""From the tables of `ostler.toml` to the gateway's settings: all of them, or all that is wrong."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ostler.domain.errors import BadInput
from ostler.gateway import argv
from ostler.gateway.control import KeyLimits, KeySetup
from ostler.gateway.core.models import Config, Group, Sets
from ostler.gateway.keys import (
    CALLER_KEYS,
    GATEWAY_KEYS,
    GROUP_KEYS,
    MODEL_KEYS,
    PEER_KEYS,
    Keys,
    Number,
    shown,
    unknown,
)
from ostler.gateway.macros import Macros, Value
from ostler.gateway.settings import GatewaySettings, ModelSettings, Peer
from ostler.gateway.spelling import nearest, spell, told

PORT_LATER = "{port}"
PID_LATER = "{pid}"
"""What a worker fills in."""
MAX_NAME = 256
ONLY_FIFO = ("groups", "sets", "evict_costs", "quantum")

Table = dict[str, Any]


def read(models: Mapping[str, Any], gateway: Mapping[str, Any], env: Mapping[str, str]) -> GatewaySettings:
    """The settings in these tables, or one BadInput that names all that is wrong with them."""
    return _Reading(models, gateway, env).settings()


class _Reading:
    def __init__(self, models: Mapping[str, Any], gateway: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._env = env
        self._problems: list[tuple[str, str]] = []
        macros = self._read({"macros": gateway.get("macros", {})}, "gateway", GATEWAY_KEYS).get("macros", {})
        self._macros = Macros(macros, env)
        self._problems += self._macros.problems
        others = {key: value for key, value in gateway.items() if key != "macros"}
        self._gateway = self._read(self._expanded(others, "gateway", {}), "gateway", GATEWAY_KEYS)
        self._models = {name: self._model(name, one) for name, one in models.items()}
        self._names = self._every_name()

    def settings(self) -> GatewaySettings:
        groups = self._groups()
        sets = Sets(members=tuple(self._sets()), evict_costs=self._evict_costs())
        keys, peers, url = self._keys(), self._peers(), self._url()
        preload = tuple(self._resolved(self._gateway.get("preload", []), "gateway.preload"))
        if self._problems:
            raise BadInput(told(self._problems), self._problems)
        plain = ("scheduler", "max_body_bytes", "cors_origins")
        chosen = {key: self._gateway[key] for key in plain if key in self._gateway}
        updates = self._gateway.get("loading_updates", True)
        models = {
            name: ModelSettings(name=name, **{"loading_updates": updates, **one}) for name, one in self._models.items()
        }
        config = Config(
            models=tuple(model.recipe() for model in models.values()),
            groups=tuple(groups.values()),
            sets=sets,
            quantum=self._gateway.get("quantum", Config().quantum),
            preload=preload,
        )
        return GatewaySettings(
            models=models, peers=peers, config=config, keys=keys, url=url, notes=list(self._notes(sets)), **chosen
        )

    # One table

    def _expanded(self, given: Mapping[str, Any], where: str, own: Mapping[str, Mapping[str, Value]]) -> Table:
        """With macros put in: `own` are those of one key, or under "" those of any other."""
        found: Table = {}
        for name, value in given.items():
            try:
                found[name] = self._macros.expand(value, f"{where}.{spell(name)}", own.get(name, own.get("", {})))
            except BadInput as error:
                self._problems += error.errors
        return found

    def _read(self, given: Any, where: str, keys: Keys) -> Table:
        """What can be used of this table, by the names that the settings have for it."""
        found: Table = {}
        for name, value in given.items() if self._is_table(given, where) else ():
            place = f"{where}.{spell(name)}"
            if name not in keys:
                self._problems.append((place, _dotted(where, name, value) or unknown(name, keys)))
                continue
            try:
                found[keys[name].field] = keys[name].read(value, place)
            except BadInput as error:
                self._problems += error.errors
        return found

    def _is_table(self, given: Any, where: str) -> bool:
        if not isinstance(given, Mapping):
            self._problems.append((where, f"must be a table, not {shown(given)}"))
        return isinstance(given, Mapping)

    # Models

    def _model(self, name: str, given: Any) -> Table:
        where = spell("models", name)
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            self._problems.append((where, f"a model's name has 1 to {MAX_NAME} characters, none of them unprintable"))
        if not self._is_table(given, where):
            return {}
        given = {key: _commentless(value) if key.startswith("cmd") else value for key, value in given.items()}
        expanded = self._expanded(given, where, _own_macros(name, given.get("port")))
        found = self._read(expanded, where, MODEL_KEYS)
        if "cmd" not in given and not any(isinstance(value, dict) and "cmd" in value for value in given.values()):
            self._problems.append((where, "has no `cmd`, which says how its server is started"))
        return found

    def _every_name(self) -> dict[str, str]:
        """The model's name by any of its names."""
        names = {name: name for name in self._models}
        for name, model in self._models.items():
            for index, alias in enumerate(model.get("aliases", [])):
                if alias in names:
                    what = f"{alias!r} is already a name of {names[alias]!r}; keep one"
                    self._problems.append((f"{spell('models', name)}.aliases[{index}]", what))
                names.setdefault(alias, name)
        return names

    def _resolved(self, names: Iterable[str], where: str) -> Iterator[str]:
        for index, name in enumerate(names):
            if name in self._names:
                yield self._names[name]
            else:
                self._no_model(name, f"{where}[{index}]")

    def _no_model(self, name: str, where: str) -> None:
        self._problems.append((where, f"there is no model {name!r}{nearest(name, self._names)}"))

    # The gateway

    def _groups(self) -> dict[str, Group]:
        found: dict[str, Group] = {}
        group_of: dict[str, str] = {}
        for name, given in self._gateway.get("groups", {}).items():
            where = spell("gateway", "groups", name)
            fields = self._read(given, where, GROUP_KEYS)
            members = tuple(self._resolved(fields.get("members", []), f"{where}.members"))
            if isinstance(given, dict) and not given.get("members"):
                self._problems.append((where, "has no `members`"))
            for member in members:
                if member in group_of:
                    what = f"{member!r} is a member of {group_of[member]!r} already; a model has one group at most"
                    self._problems.append((f"{where}.members", what))
                group_of.setdefault(member, name)
            found[name] = Group(**{**fields, "members": members})
        return found

    def _sets(self) -> Iterator[tuple[str, ...]]:
        for index, names in enumerate(self._gateway.get("sets", [])):
            where = f"gateway.sets[{index}]"
            members = tuple(self._resolved(names, where))
            if len(set(members)) < len(members):
                self._problems.append((where, "has the same model twice"))
            yield members

    def _evict_costs(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, cost in self._gateway.get("evict_costs", {}).items():
            where = spell("gateway", "evict_costs", name)
            try:
                found[self._names.get(name, name)] = Number(0)(cost, where)
            except BadInput as error:
                self._problems += error.errors
            if name not in self._names:
                self._no_model(name, where)
        return found

    def _keys(self) -> list[KeySetup]:
        found: dict[str, KeySetup] = {}
        for index, given in enumerate(self._gateway.get("api_keys", [])):
            where = f"gateway.api_keys[{index}]"
            entry = {"key": given} if isinstance(given, str) else given
            fields = self._read(entry, where, CALLER_KEYS)
            if isinstance(entry, dict) and not entry.keys() & {"key", "key_env"}:
                self._problems.append((where, "has neither `key` nor `key_env`"))
            secret = self._secret(fields, "key", where)
            digest = hashlib.sha256(secret.encode()).hexdigest()
            if secret and digest in found:
                self._problems.append((where, "is the same key as one before it"))
            limits = KeyLimits(in_flight=fields.get("in_flight"))
            found[digest] = KeySetup(digest, fields.get("user", f"key-{index + 1}"), "user", limits)
        return list(found.values())

    def _url(self) -> str:
        given = self._gateway.get("url", "")
        url = _base(given)
        if given and not url:
            self._problems.append(("gateway.url", f"{shown(given)} is not a URL such as 'https://models.example'"))
        return url

    def _peers(self) -> dict[str, Peer]:
        found: dict[str, Peer] = {}
        for name, given in self._gateway.get("peers", {}).items():
            where = spell("gateway", "peers", name)
            fields = self._read(given, where, PEER_KEYS)
            url = _base(fields.get("url", ""))
            if isinstance(given, dict):
                for key in [key for key in ("url", "models") if not given.get(key)]:
                    self._problems.append((where, f"has no `{key}`"))
                if "url" in fields and not url:
                    what = f"{shown(fields['url'])} is not a URL such as 'https://host:8000'"
                    self._problems.append((f"{where}.url", what))
            found[name] = Peer(
                name=name,
                url=url,
                models=list(dict.fromkeys(fields.get("models", []))),
                api_key=self._secret(fields, "api_key", where),
                **({"filters": fields["filters"]} if "filters" in fields else {}),
            )
        return found

    def _secret(self, fields: Table, key: str, where: str) -> str:
        """What stands there, or in the variable that is named there."""
        variable = fields.get(f"{key}_env", "")
        if key in fields and variable:
            self._problems.append((where, f"has both `{key}` and `{key}_env`; keep one"))
        elif variable and not self._env.get(variable):
            what = f"the variable {variable!r} is not set where the hub runs"
            self._problems.append((f"{where}.{key}_env", what))
        return str(fields.get(key) or self._env.get(variable, ""))

    # What is odd

    def _notes(self, sets: Sets) -> Iterator[tuple[str, str]]:
        for name, model in self._models.items():
            if model.get("max_instances", 1) != 1 and not model.get("concurrency"):
                what = "counts for nothing without `concurrency`: one process serves any number of requests"
                yield f"{spell('models', name)}.max_instances", what
        if self._gateway.get("scheduler", "serial") == "serial":
            unused = [f"gateway.{key}" for key in ONLY_FIFO if key in self._gateway]
            unused += [
                f"{spell('models', name)}.{key}"
                for name, model in self._models.items()
                for key in ("priority", "concurrency", "max_instances")
                if key in model
            ]
            for where in unused:
                yield where, "counts for nothing: the scheduler is 'serial'; gateway.scheduler = 'fifo' heeds it"
        in_sets = {member for members in sets.members for member in members}
        for name in self._models if in_sets else ():
            if name not in in_sets:
                yield spell("models", name), "is in no set: it may be loaded beside any other model"


def _own_macros(name: str, port: Any) -> dict[str, dict[str, Value]]:
    fixed: dict[str, Value] = {"MODEL_ID": name}
    if isinstance(port, int) and not isinstance(port, bool):
        fixed["PORT"] = port
    filled: dict[str, Value] = {"PORT": PORT_LATER, **fixed}
    return {"": fixed, "cmd": filled, "cmd_stop": {"PID": PID_LATER, **filled}}


def _commentless(value: Any) -> Any:
    return argv.without_comments(value) if isinstance(value, str) else value


def _dotted(where: str, name: str, value: Any) -> str:
    """`[models.qwen2.5]` is a model 'qwen2' with a key '5': say how it is meant."""
    path, inside = [name], value
    while isinstance(inside, dict) and "cmd" not in inside and len(inside) == 1:
        (key, inside) = next(iter(inside.items()))
        path.append(key)
    if not where.startswith("models.") or not isinstance(inside, dict) or "cmd" not in inside:
        return ""
    whole = ".".join([where.removeprefix("models."), *path])
    return f'unknown key {name!r}; a name with dots is put in quotes: [models."{whole}"]'


def _base(url: str) -> str:
    """Without what every request brings; nothing where it is no URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    return url.rstrip("/").removesuffix("/v1") if usable and not parts.query and not parts.fragment else ""
