"""The gateway's models: seen, loaded and unloaded, and brought over from llama-swap."""

import sys
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostler.cli import exits
from ostler.cli.options import Access, Json
from ostler.cli.render.terminal import note, show_json
from ostler.cli.render.terminal import show as show_parts
from ostler.cli.render.words import clean
from ostler.cli.session import connect
from ostler.domain.errors import BadInput, NotFound
from ostler.domain.quota import GATEWAY_USER

if TYPE_CHECKING:
    from ostler.client.http import Hub

Document = dict[str, Any]
LOOK_S = 0.25
GIVEN_UP = ("stopped", "backing_off")
"""With an error: nothing more happens by itself."""
CHANGES = ("added", "changed", "restarted", "removed")

ModelName = Annotated[str, typer.Argument(metavar="NAME", help="A model's name, or an alias.", show_default=False)]


def models(ctx: typer.Context, access: Access, json: Json = False) -> int:
    """List the gateway's models, or look after one."""
    ctx.obj = access
    if ctx.invoked_subcommand is not None:
        return exits.DONE
    with connect(access) as hub:
        found, config = hub.models(), hub.models_config()
    if json:
        show_json({"models": found, "next": None, "config": config})
        return exits.DONE
    from ostler.cli.render.models import model_table

    show_parts(model_table(found))
    if config["error"]:
        note(clean(f"what counts is not what the file says: {config['error']}"))
    return exits.DONE


def reload(access: Access, json: Json = False) -> int:
    """Read the models' configuration again, without waiting for the hub to see that it changed."""
    with connect(access) as hub:
        found = hub.reload_models()
    if json:
        show_json(found)
        return exits.DONE
    told = [f"{what} {', '.join(map(clean, found[what]))}" for what in CHANGES if found[what]]
    print("; ".join(told) or "nothing has changed")
    for one in found["notes"]:
        note(clean(f"{one['where']}: {one['what']}"))
    return exits.DONE


def load(
    model: ModelName,
    access: Access,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Until it is ready; exit 1 if it could not be.")] = False,
    json: Json = False,
) -> int:
    """Load a model before somebody asks for it."""
    with connect(access) as hub:
        document = hub.change_model(model, "load")
        told = None
        while wait and not _is_settled(document):
            time.sleep(LOOK_S)
            document = _find(hub, document["name"])
            if document["state"] == "stopped" and document["waits_for"] not in (None, told):
                told = document["waits_for"]
                note(clean(told))
    _told(document, json)
    return exits.FAILED if wait and document["state"] != "ready" else exits.DONE


def _is_settled(model: Document) -> bool:
    return model["state"] == "ready" or (model["state"] in GIVEN_UP and bool(model["error"]))


def unload(model: ModelName, access: Access, json: Json = False) -> int:
    """Stop a model's server. What it is serving is broken off, and who waits for it is told."""
    return _changed(model, access, "unload", json)


def pin(model: ModelName, access: Access, json: Json = False) -> int:
    """Keep a model: it makes room for no other, and for no job."""
    return _changed(model, access, "pin", json)


def unpin(model: ModelName, access: Access, json: Json = False) -> int:
    """Let a model make room for others again."""
    return _changed(model, access, "unpin", json)


def _changed(model: str, access: Access, action: str, as_json: bool) -> int:
    with connect(access) as hub:
        document = hub.change_model(model, action)
    _told(document, as_json)
    return exits.DONE


def _told(model: Document, as_json: bool) -> None:
    if as_json:
        show_json(model)
    else:
        from ostler.cli.render.models import model_line

        print(model_line(model))


def logs(
    model: ModelName,
    access: Access,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows, until the server ends.")] = False,
) -> int:
    """Print what a model's server has written since it was started last, also if it has ended."""
    with connect(access) as hub:
        for chunk in hub.logs(_last_job(hub, _find(hub, model)), follow=follow):
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    return exits.DONE


def _last_job(hub: "Hub", model: Document) -> str:
    """Its process, which is a job of the gateway's with the model's name."""
    if model["job_id"]:
        return str(model["job_id"])
    for job in hub.all_jobs(name=model["name"], user=GATEWAY_USER, limit=1):
        return str(job["id"])
    raise NotFound(f"{clean(model['name'])} has not been started yet: ostler models load {clean(model['name'])}")


def _find(hub: "Hub", name: str) -> Document:
    found = hub.models()
    for model in found:
        if name in (model["name"], *model.get("aliases", ())):
            return model
    close = get_close_matches(name, [model["name"] for model in found], n=1)
    meant = f"; did you mean {clean(close[0])!r}?" if close else "; ostler models lists those there are"
    raise NotFound(f"there is no model {clean(name)!r}{meant}")


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="llama-swap's YAML.", show_default=False)],
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
    json: Json = False,
) -> int:
    """Make our TOML of llama-swap's configuration.

    What could not be carried over, or means something else here, is told on standard error.
    """
    from ostler.gateway.llamaswap import import_yaml

    if write is not None and write.exists():
        raise BadInput(f"{write} is there already; choose another name, or remove it", [("--write", "exists")])
    try:
        text, remarks = import_yaml(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not UTF-8", [("FILE", "not UTF-8")]) from None
    except BadInput as error:
        raise BadInput(f"{file}: {error}", error.errors) from None
    if write is not None:
        write.write_text(text, encoding="utf-8")
    if json:
        show_json({"toml": text, "remarks": [remark._asdict() for remark in remarks]})
        return exits.DONE
    if write is None:
        sys.stdout.write(text)
    for remark in remarks:
        note(clean(f"{remark.where}: {remark.what}"))
    return exits.DONE
