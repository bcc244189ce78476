"""An OpenAI-compatible server that says what a local model said, and whose every call takes the same time.

    python benchmarks/replay_server.py [--model NAME] [--seconds 0.1]

Prints its URL and serves until it is stopped; any number of calls at once. A call that it gets for the first time is
put to the model and takes as long as that does; the same call again takes the fixed time. ``GET /spans`` gives when
each call came and ended, and forgets them.
"""

import argparse
import asyncio
import json
from typing import Any

from hoptimizer.models import LMSettings, build_lm
from scripted_server import FixedLatencyServer


class ReplayServer(FixedLatencyServer):
    """Answers as a model of this machine does.

    Args:
        model: a name of the weights store.
        seconds: a call takes once its answer is known.
    """

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(seconds)
        self._lm = build_lm(LMSettings(model=f"local/{model}"))
        self._known: dict[str, str] = {}

    async def text(self, request: dict[str, Any]) -> str:
        """What the model says to the messages."""
        call = json.dumps(request, sort_keys=True)
        if call not in self._known:
            most = request.get("max_completion_tokens") or request.get("max_tokens")
            [said] = await self._lm.acall(messages=request["messages"], max_tokens=most)
            self._known[call] = said if isinstance(said, str) else said["text"]
        return self._known[call]


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="(default: smollm2-135m-instruct)")
    parser.add_argument("--seconds", type=float, default=0.1, help="a call takes (default: 0.1)")
    options = parser.parse_args()
    asyncio.run(ReplayServer(options.model, options.seconds).serve())


if __name__ == "__main__":
    main()
