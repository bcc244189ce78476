"""Answering from memory: no retrieval (NoR in IRCoT)."""

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.retrieval import Passage


class Direct(Program):
    """Answers with one language model call, without passages (IRCoT, section 4.1, baseline NoR).

    Args:
        reader: ``direct`` answers at once, ``cot`` after a chain of thought, ``phrase`` at its end (IRCoT's protocol),
            ``none`` not at all.

    Example:
        >>> import dspy
        >>> from hoptimizer.models import LMSettings, build_adapter, build_lm
        >>> from hoptimizer.programs import Direct
        >>> lm = build_lm(LMSettings(model="local/smollm2-135m-instruct", max_tokens=32))
        >>> with dspy.context(lm=lm, adapter=build_adapter()):
        ...     prediction = Direct()(question="What is the capital of France?")
        >>> isinstance(prediction.answer, str), prediction.passages, prediction.steps[0].calls
        (True, [], 1)
    """

    def __init__(self, reader: ReaderKind = "direct") -> None:
        super().__init__()
        self.reader = make_reader(reader, passages=False)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        return await read(self, question), []


class CoT(Direct):
    """Like :class:`Direct`, with a chain of thought.

    Args:
        reader: ``direct`` answers at once, ``cot`` after a chain of thought, ``phrase`` at its end (IRCoT's protocol),
            ``none`` not at all.

    Example:
        >>> from hoptimizer.programs import CoT
        >>> CoT().reader.signature.signature
        'question -> reasoning, answer'
    """

    def __init__(self, reader: ReaderKind = "cot") -> None:
        super().__init__(reader)
