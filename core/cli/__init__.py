"""The command line, ``hop``."""

import atexit
import gc
import os
import sys

# Importing torch, transformers and MLflow makes millions of objects that stay, through which Python's collector goes
# again and again after every 700 new ones: a fifth of the time that it takes.
_NEW_OBJECTS = 50_000
_FILES = 10_240
# Commands whose work is kept when they are stopped.
_LONG = (["compile"], ["eval"], ["study"])
_INTERRUPTED = 130


def _open_more_files() -> None:
    """Let the process open as many files as it may, up to ten thousand. Each of its threads opens the sixteen parts of
    the caches of answers, and each call has a connection; macOS gives a process 256 files by default."""
    try:
        import resource
    except ImportError:  # Windows, where there is no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    """Run ``hop`` on the process's arguments.

    A mistake of the user's ends in one line on stderr and exit code 2, a service that fails and a full disk in one line
    and exit code 1, Ctrl-C in exit code 130; anything else that rises is a bug, and keeps its traceback. Where the same
    command goes on from there, the line of the latter two says so.
    """
    from hoptimizer.common.memory import limit_reserves

    _open_more_files()
    limit_reserves()  # before the libraries below start threads
    gc.set_threshold(_NEW_OBJECTS)
    # As the process ends, Python would look for cycles among all that was ever imported: a fifth of a second.
    atexit.register(gc.freeze)
    # Progress is shown by hop itself; bars of the libraries below would cross it. They read this when imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    from hoptimizer.cli.app import app
    from hoptimizer.cli.screen.console import tell
    from hoptimizer.common.disk import disk_failure
    from hoptimizer.common.errors import ServiceError, UserError
    from hoptimizer.common.urls import line_without_secrets, text_without_secrets

    goes_on = "; give the same command again, and it goes on from there" if sys.argv[1:2] in _LONG else ""
    try:
        app(prog_name="hop")
    except SystemExit as end:
        if end.code == _INTERRUPTED and goes_on:
            tell(f"hop: stopped{goes_on}")
        raise
    except ServiceError as error:
        line = line_without_secrets(error)
        tell(f"hop: {line}{'' if 'same command' in line else goes_on}")
        sys.exit(1)
    except UserError as error:
        tell(f"hop: {line_without_secrets(error)}")
        sys.exit(2)
    except Exception as error:
        if full := disk_failure(error):
            tell(f"hop: {text_without_secrets(full)}; mend that, and give the same command again")
            sys.exit(1)
        raise
