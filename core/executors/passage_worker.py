"""What runs in a worker's process while an index is built: an encoder of its own, which gets windows of passages."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hoptimizer.executors.task import Node, Refusal
from hoptimizer.executors.worker import OnNode, refusal_of
from hoptimizer.retrieval.build import build_encoder
from hoptimizer.retrieval.encoders.windows import EncodedWindow
from hoptimizer.retrieval.settings import settings_model

Encoded = EncodedWindow[NDArray[np.float16] | list[NDArray[np.float16]]]
"""What an encoder makes of a window, with vectors in arrays, which Ray hands over whole."""


@dataclass(frozen=True)
class EncodingTask:
    """What a worker encodes with.

    Attributes:
        settings: of the retriever, as plain data.
        digest: of the model that it must have.
        node: what else its machine must have.
    """

    settings: dict[str, Any]
    digest: str
    node: Node = field(default_factory=lambda: Node.for_models(()))


class PassageWorker(OnNode):
    """Gives passages their vectors by a model that is loaded here, from this machine's weights."""

    async def start(self, task: EncodingTask) -> Refusal | None:
        """Load the encoder.

        Args:
            task: which one.

        Returns:
            why it can't be loaded, or ``None``.
        """
        if told := task.node.lacking():
            return Refusal(told)
        try:
            settings = settings_model(task.settings["name"]).model_validate(task.settings)
            self._encoder, digest = build_encoder(settings)
        except Exception as error:
            if refusal := refusal_of(error):
                return refusal
            raise
        if digest != task.digest:
            return Refusal(f"{settings.shown}: its model there is another one than the driver's; copy it to all nodes")
        return None

    async def answer(self, texts: list[str]) -> Encoded:
        """Encode a window of passages.

        Args:
            texts: in order of length.
        """
        encoded = self._encoder.window(texts)
        batches = [
            (rows, vectors.numpy() if isinstance(vectors, torch.Tensor) else [one.numpy() for one in vectors])
            for rows, vectors in encoded.batches
        ]
        return EncodedWindow(batches, encoded.cut)
