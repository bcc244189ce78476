"""Which demonstrations a step shows: those with all of its outputs, as many as were asked for."""

import dspy
import pytest
from scripted import ScriptedEngine, ScriptedRetriever, passage

from hoptimizer.common.errors import UserError
from hoptimizer.eval.datasets.question import Hop, Question
from hoptimizer.eval.objective import Objective
from hoptimizer.models import build_adapter
from hoptimizer.optimizers import CompileContext, build_optimizer, settings_model
from hoptimizer.optimizers.prompt.few_shot import labeled
from hoptimizer.programs import RAG, RAISF, CoT, DecomposeRAG, Program
from hoptimizer.retrieval import Corpus

GOLD = passage("gold")
ABSENT = "Not supplied for this particular example."


def question(number, **annotations):
    return Question(
        id=f"q{number}", question=f"Question {number}?", answers=["Paris"], passages=["gold"], **annotations
    )


def prompts(program, asked):
    """What the language model reads, for each field that it writes."""
    read = []
    engine = ScriptedEngine(lambda field, inputs, prompt: (read.append(prompt), "Rome")[1])
    with dspy.context(lm=engine.lm(cache=False), adapter=build_adapter()):
        program(question=asked)
    return read


class Own(Program):
    """A user's program, one of whose steps is asked neither a question nor a query."""

    step_names = ("shorten", "reader")

    def __init__(self):
        super().__init__()
        self.shorten = dspy.Predict("text -> short")
        self.reader = dspy.Predict("question -> answer")

    async def solve(self, question):
        short = (await self.step("shorten", text=question)).short
        return (await self.step("reader", question=short or question)).answer or "", []


@pytest.fixture
def compiled(tmp_path):
    """Compile a program with an optimizer, whose language model says the field's name."""

    def compile(program, train, name, **options):
        context = CompileContext(
            program=program,
            trainset=train,
            devset=train[:1],
            corpus=Corpus([GOLD]),
            objective=Objective.parse("f1"),
            teacher_lm=None,
            seed=7,
            workers=1,
            folder=tmp_path,
        )
        engine = ScriptedEngine(lambda field, inputs, prompt: "Paris" if field == "answer" else f"said {field}")
        with dspy.context(lm=engine.lm(cache=False), adapter=build_adapter()):
            return build_optimizer(settings_model(name).model_validate({"name": name, **options})).compile(context)

    return compile


def test_a_demonstration_that_lacks_an_output_is_not_shown(compiled):
    train = [question(number, rationale="It lies on the Seine. It is Paris.") for number in range(4)]
    program = compiled(CoT(), train, "labeled_few_shot", k=2)
    assert len(program.reader.demos) == 2
    program.reader.demos = [*program.reader.demos, dspy.Example(question="Where?", answer="Paris")]
    reasoning, answer = prompts(program, "Which?")
    assert reasoning == answer
    assert reasoning.count("It lies on the Seine.") == 2
    assert ABSENT not in reasoning


def test_a_compile_that_would_show_no_demonstration_at_all_is_one_line(compiled):
    with pytest.raises(UserError, match=r"no train question has what reader would show.*take bootstrap_few_shot"):
        compiled(CoT(), [question(number) for number in range(4)], "labeled_few_shot", k=2)


def test_a_program_without_steps_has_nothing_to_show(compiled):
    program = RAG(ScriptedRetriever({}), reader="none")
    assert compiled(program, [question(number) for number in range(4)], "labeled_few_shot").predictors() == []


def test_a_step_shows_as_many_as_were_asked_for_where_other_questions_have_its_outputs():
    hop = Hop(question="Who?", answer="Paris", passage="gold")
    retriever = ScriptedRetriever({})
    examples = [
        question(number).to_dspy().copy(context=["gold"], **({"subquestions": [hop.question]} if number > 9 else {}))
        for number in range(14)
    ]
    program = labeled(DecomposeRAG(retriever), examples, 3)
    assert [demo.subquestions for demo in program.decompose.demos] == [["Who?"]] * 3
    assert len({demo.question for demo in program.decompose.demos}) == 3
    drawn = dspy.LabeledFewShot(k=3).compile(DecomposeRAG(retriever), trainset=examples)
    assert program.reader.demos == drawn.reader.demos, "where nothing lacks, it is DSPy's draw"


def test_a_step_that_chooses_shows_each_choice_in_turn():
    examples = [
        question(number).to_dspy().copy(passage="gold", relevant="yes" if number in {3, 17} else "no")
        for number in range(20)
    ]
    relevant = [demo.relevant for demo in labeled(RAISF(ScriptedRetriever({})), examples, 6).relevance.demos]
    assert relevant in (["yes", "no"] * 2 + ["no"] * 2, ["no", "yes"] * 2 + ["no"] * 2)
    alike = [example.copy(relevant="no") for example in examples]
    drawn = dspy.LabeledFewShot(k=6).compile(RAISF(ScriptedRetriever({})), trainset=alike)
    shown = labeled(RAISF(ScriptedRetriever({})), alike, 6).relevance.demos
    assert shown == drawn.relevance.demos, "where there is one choice, it is DSPy's draw"


def test_the_nearest_questions_are_those_of_the_question_whatever_a_step_is_asked(compiled):
    program = compiled(Own(), [question(number) for number in range(3)], "knn_few_shot", k=1)
    shorten, reader = prompts(program, "Question 1 again?")
    assert "Question 1?" in shorten
    assert "said short" in reader
