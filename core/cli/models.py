"""``hop models``: the weights store."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hoptimizer.cli.screen.options import Json, store_uri

app = typer.Typer(name="models", help="The weights store: models that hoptimizer knows by name.", no_args_is_help=True)


@app.command("list")
def list_command(as_json: Json = False) -> None:
    """List the models of the weights store, and which are here.

    Example:

        hop models list
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show
    from hoptimizer.models.weights.store import table

    entries = table()
    listing = Table("model", "licence", "size", "here", "about", box=None, header_style="bold", pad_edge=False)
    for entry in entries:
        listing.add_row(
            entry.name, entry.licence, f"{entry.size / 1e6:.0f} MB", "yes" if entry.folder else "no", entry.about
        )
    rows = [
        {
            "name": entry.name,
            "licence": entry.licence,
            "bytes": entry.size,
            "sources": list(entry.sources),
            "folder": str(entry.folder) if entry.folder else None,
        }
        for entry in entries
    ]
    show({"models": rows}, as_json, listing)


@app.command("pull")
def pull_command(name: Annotated[str, typer.Argument(help="A name of the store.")], as_json: Json = False) -> None:
    """Download a model of the store, verify it and keep it.

    One that is here already is verified; one that is damaged is downloaded again.

    Example:

        hop models pull smollm2-135m-instruct
    """
    from hoptimizer.cli.screen.console import show
    from hoptimizer.models.weights.store import pull

    folder = pull(name, verify=True)
    show({"name": name, "folder": str(folder)}, as_json, f"{name} is in {folder}")


@app.command("serve")
def serve_command(
    model: Annotated[
        str,
        typer.Argument(
            help="A name of the store, a model's folder, an id of the Hugging Face hub, or a variant with a fine-tuned "
            "language model: its run's id or the start of it, models:/NAME/VERSION, or its folder."
        ),
    ],
    extra: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]...", help="Further arguments, for vLLM.", show_default=False),
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs over which the model is split.", min=1)] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call it.")] = None,
    prompt_format: Annotated[
        str | None,
        typer.Option(help="json, chat or plain; by default as in this process, chat for a hub id.", show_default=False),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FOLDER", help="LoRA adapters to serve beside it; may be given several times."),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="The Python of an environment with vLLM; by default HOP_VLLM_PYTHON, else this one."),
    ] = None,
    uri: Annotated[
        str | None, typer.Option("--tracking-uri", help="Where runs are kept, if not in the default store.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, and start nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a language model with vLLM, which has an environment of its own, and say how a config asks it.

    The process becomes vLLM's OpenAI server. What stands after -- goes to it as it is.

    Examples:

        hop models serve qwen2.5-coder-1.5b-instruct --python vllm/bin/python

        hop models serve Qwen/Qwen3-8B --gpus 2 -- --max-model-len 8192

        hop models serve 1f2e3d --port 8001

        hop models serve smollm2-135m-instruct --lora capitals=./adapters
    """
    import shlex
    from dataclasses import replace

    from hoptimizer.cli.screen.console import show, tell, working
    from hoptimizer.serving import vllm
    from hoptimizer.serving.server import address, listening

    wanted = vllm.checked_format(prompt_format)
    interpreter = str(python or "python") if dry_run else vllm.vllm_python(python)
    with listening(host, port) as listener:
        url = address(listener)
    with working():
        served = vllm.servable(model, store_uri([f"tracking.uri={uri}"] if uri else ()))
    served = replace(served, name=name or served.name, prompt_format=wanted or served.prompt_format)
    loras = vllm.adapters(lora or (), served.name)
    command = vllm.vllm_command(interpreter, served, host, int(url.rpartition(":")[2]), gpus, loras, extra or ())
    lms = {one: vllm.lm_config(served, one, url) for one in (served.name, *(lora.name for lora in loras))}
    for one, section in lms.items():
        tell(f"{one} at {url}, once vLLM has started; in a config:\n{vllm.as_yaml(section)}")
    if as_json:
        show({"command": command, "url": url, "lm": lms}, as_json)
    elif dry_run:
        typer.echo(shlex.join(command))  # to be copied, so that it is not wrapped
    if not dry_run:
        sys.stdout.flush()  # it is read while the server runs
        os.execve(interpreter, command, vllm.environment())
