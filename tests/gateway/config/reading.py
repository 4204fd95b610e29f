"""A configuration as it stands in a file."""

import tomllib
from typing import Any

from ostler.gateway import config
from ostler.gateway.core.models import Catalogue
from ostler.gateway.settings import GatewaySettings, ModelSettings

ENV = {"HOME": "/home/ann", "TEAM_KEY": "sk-team", "EMPTY": ""}


def settings(text: str, env: dict[str, str] | None = None) -> GatewaySettings:
    tables = tomllib.loads(text)
    found = config.read(tables.get("models", {}), tables.get("gateway", {}), ENV if env is None else env)
    Catalogue(found.config)  # whatever passes here, the scheduler takes
    return found


def model(keys: str, env: dict[str, str] | None = None) -> ModelSettings:
    """The one model with these keys, and a command where they have none."""
    command = "" if keys.lstrip().startswith("cmd =") else "cmd = 'server'\n"
    return settings(f"[models.m]\n{command}{keys}", env).models["m"]


def value(key: str, given: str) -> Any:
    return getattr(model(f"{key} = {given}"), config.MODEL_KEYS[key].field)
