"""Answering from memory: no retrieval (NoR in IRCoT)."""

from hoptimizer.programs.program import Program
from hoptimizer.programs.reader import ReaderKind, make_reader, read
from hoptimizer.programs.steps.pages import page_passage
from hoptimizer.programs.trace import main_page
from hoptimizer.retrieval import Passage


class Direct(Program):
    """Answers with one language model call, without passages (IRCoT, section 4.1, baseline NoR).

    Args:
        reader: ``direct`` answers at once, ``cot`` after a chain of thought, ``phrase`` at its end (IRCoT's protocol),
            ``none`` not at all.
        page: for questions that are asked about a page: it is read (IRCoT, appendix B).

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

    def __init__(self, reader: ReaderKind = "direct", page: bool = False) -> None:
        super().__init__()
        self.page = page
        self.reader = make_reader(reader, passages=page)

    async def solve(self, question: str) -> tuple[str, list[Passage]]:
        if not self.page:
            return await read(self, question), []
        if self.corpus is None:
            raise TypeError(f"{type(self).__name__} reads the page that a question is asked about: give it a corpus")
        main = main_page()
        passages = [page_passage(self.corpus, main)] if main else []
        return await read(self, question, passages), passages


class CoT(Direct):
    """Like :class:`Direct`, with a chain of thought.

    Args:
        reader: ``direct`` answers at once, ``cot`` after a chain of thought, ``phrase`` at its end (IRCoT's protocol),
            ``none`` not at all.
        page: for questions that are asked about a page: it is read (IRCoT, appendix B).

    Example:
        >>> from hoptimizer.programs import CoT
        >>> CoT().reader.signature.signature
        'question -> reasoning, answer'
    """

    def __init__(self, reader: ReaderKind = "cot", page: bool = False) -> None:
        super().__init__(reader, page)
