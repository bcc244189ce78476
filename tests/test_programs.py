"""Control flow of the programs, on a scripted language model and a scripted retriever."""

import asyncio

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import ContextWindowExceededError
from scripted import ScriptedRetriever, passage

from hoptimizer.programs import RAG, CoT, Direct, IRCoT
from hoptimizer.programs.reader import answer_of, states_answer
from hoptimizer.programs.record import counts
from hoptimizer.retrieval import Passage

QUESTION = "Who directed the film that Ada starred in?"
QUERY = "directed the film that Ada starred in?"


def run(program, *answers, question=QUESTION):
    with dspy.context(lm=DummyLM(list(answers)), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        return program(question=question)


def thoughts(*sentences):
    return [{"thought": sentence} for sentence in sentences]


def test_a_sampling_copy_of_the_default_model_leaves_steps_on_their_own():
    default, own, other = (dspy.LM(f"openai/{name}", api_key="none") for name in ("default", "own", "other"))
    program = IRCoT(ScriptedRetriever({}), k=1)
    program.lms["reader"] = own
    with dspy.context(lm=default):
        program.set_lm(default.copy(rollout_id=3, temperature=1.0))
        assert (program.reason.lm.model, program.reader.lm.model) == ("openai/default", "openai/own")
        assert {program.reader.lm.kwargs[name] for name in ("rollout_id", "temperature")} == {3, 1.0}
        assert own.kwargs.get("rollout_id") is None
        program.set_lm(other)
        assert program.reader.lm.model == "openai/other"


def test_direct_answers_from_memory_with_one_call():
    prediction = run(Direct(), {"answer": " Orson Welles "})
    assert prediction.answer == "Orson Welles"
    assert prediction.passages == []
    assert counts(prediction.steps)["lm_calls"] == 1


def test_cot_takes_the_answer_from_the_end_of_the_chain():
    prediction = run(CoT(), {"chain": "Ada starred in Kane. Welles directed Kane. So the answer is: Welles."})
    assert prediction.answer == "Welles"


@pytest.mark.parametrize(
    ("chain", "answer"),
    [
        ("He was born in 1915. So the answer is: 1915.", "1915"),
        ("The Answer is Paris", "Paris"),
        ("He was born in Paris.", "He was born in Paris"),
        ("So the answer is: St. Louis.", "St. Louis"),
        ("", ""),
    ],
)
def test_answer_of_a_chain(chain, answer):
    assert answer_of(chain) == answer
    assert states_answer(chain) == ("answer is" in chain.lower())


def test_rag_retrieves_once_with_the_question_and_reads_what_it_found():
    retriever = ScriptedRetriever({QUESTION: [passage("kane"), passage("welles"), passage("spare")]})
    prediction = run(RAG(retriever, k=2), {"answer": "Welles"})
    assert [p.id for p in prediction.passages] == ["kane", "welles"]
    retrieved, read = prediction.steps
    assert (retrieved.kind, retrieved.inputs) == ("retrieval", {"query": QUESTION})
    assert read.inputs == {"question": QUESTION, "context": ["kane", "welles"]}
    assert read.outputs == {"answer": "Welles"}


def test_no_reader_scores_retrieval_without_a_call():
    retriever = ScriptedRetriever({QUESTION: [passage("kane")]})
    prediction = run(RAG(retriever, reader="none"))
    assert prediction.answer == ""
    assert [p.id for p in prediction.passages] == ["kane"]
    assert counts(prediction.steps)["lm_calls"] == 0


def test_ircot_retrieves_with_each_thought_and_stops_when_the_chain_states_an_answer():
    first = "Ada starred in Kane."
    retriever = ScriptedRetriever({QUERY: [passage("ada")], first: [passage("kane")]})
    program = IRCoT(retriever)
    prediction = run(
        program, *thoughts(first, "So the answer is: Welles."), {"chain": "Welles did. So the answer is: Welles."}
    )
    assert retriever.queries == [QUERY, first]
    assert [p.id for p in prediction.passages] == ["ada", "kane"]
    assert prediction.answer == "Welles"
    assert [record.step for record in prediction.steps] == ["retrieve", "reason", "retrieve", "reason", "reader"]


def test_ircot_keeps_only_the_first_sentence_of_a_thought():
    first = "The U.S. Senate passed it in 1990."
    retriever = ScriptedRetriever({})
    prediction = run(
        IRCoT(retriever, max_steps=2),
        *thoughts(f"{first} It was signed by Bush. So the answer is: Bush.", "So the answer is: 1990."),
        {"chain": "So the answer is: 1990."},
    )
    assert retriever.queries[1] == first
    assert prediction.steps[3].inputs["thoughts"] == first


def test_ircot_stops_at_the_step_limit_without_a_spare_retrieval():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=2), *thoughts("Ada was born.", "Ada acted."), {"chain": "So the answer is: x."})
    assert retriever.queries == [QUERY, "Ada was born."]


def test_ircot_stops_when_no_thought_comes():
    prediction = run(IRCoT(ScriptedRetriever({})), {"thought": "  "}, {"chain": "So the answer is: x."})
    assert counts(prediction.steps) | {"lm_calls": 2, "retrievals": 1} == counts(prediction.steps)


def test_ircot_stops_when_a_thought_repeats_an_earlier_one():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever), *thoughts("Ada acted.", "Ada sang.", "Ada acted."), {"chain": "So the answer is: x."})
    assert retriever.queries == [QUERY, "Ada acted.", "Ada sang."]


def test_ircot_searches_with_the_last_thought_that_is_not_mere_inference():
    retriever = ScriptedRetriever({})
    run(
        IRCoT(retriever, max_steps=4),
        *thoughts("Kane is from 1941.", "Thus Kane is the older one.", "1941 + 4 = 1945", "So the answer is: Kane."),
        {"chain": "So the answer is: Kane."},
    )
    assert retriever.queries == [QUERY, "Kane is from 1941.", "Kane is from 1941.", "Kane is from 1941."]


def test_ircot_falls_back_to_the_question_when_every_thought_is_inference():
    retriever = ScriptedRetriever({})
    run(IRCoT(retriever, max_steps=2), *thoughts("So it must be.", "So it is."), {"chain": ""})
    assert retriever.queries == [QUERY, QUERY]


def test_ircot_options_leave_the_query_as_it_is():
    retriever = ScriptedRetriever({})
    program = IRCoT(retriever, max_steps=2, skip_inference=False, drop_interrogatives=False)
    run(program, *thoughts("So what?", "So it is."), {"chain": ""})
    assert retriever.queries == [QUESTION, "So what?"]


def test_ircot_collects_at_most_its_cap_first_come_first_kept():
    retriever = ScriptedRetriever({QUERY: [passage("a"), passage("b")], "T.": [passage("c"), passage("d")]})
    prediction = run(IRCoT(retriever, max_passages=3), *thoughts("T.", "So the answer is: x."), {"chain": "x"})
    assert [p.id for p in prediction.passages] == ["a", "b", "c"]


def test_ircot_skips_long_paragraphs_cuts_the_rest_and_drops_near_duplicates():
    long, cut = passage("long", "word " * 601), passage("cut", "word " * 400)
    tower = Passage("tower", "Eiffel Tower", "The tower stands in Paris since 1889, by the river Seine.")
    twin = Passage("twin", "Eiffel Tower.", "The tower stands in Paris since 1889, by the river Seine!")
    retriever = ScriptedRetriever({QUERY: [long, cut, tower, twin]})
    prediction = run(IRCoT(retriever), *thoughts("So the answer is: x."), {"chain": "x"})
    assert [p.id for p in prediction.passages] == ["cut", "tower"]
    assert len(prediction.passages[0].text.split()) == 350


def test_ircot_keeps_passages_of_which_only_the_title_or_only_the_text_is_alike():
    stub = "It is a village in the administrative district of Gmina Lubin, in south-western Poland."
    village, namesake = Passage("a", "Zimna Woda", stub), Passage("b", "Zimna Woda", "A river that flows through Lviv.")
    other, same = Passage("c", "Gorzyca", stub), Passage("d", "Zimna Woda", stub + ".")
    retriever = ScriptedRetriever({QUERY: [village, namesake, other, same]})
    prediction = run(IRCoT(retriever), *thoughts("So the answer is: x."), {"chain": "x"})
    assert [p.id for p in prediction.passages] == ["a", "b", "c"]


def test_ircot_compares_passages_without_titles_by_their_texts():
    retriever = ScriptedRetriever(
        {QUERY: [Passage("a", "", "The tower is tall."), Passage("b", "", "The tower is tall!")]}
    )
    prediction = run(IRCoT(retriever), *thoughts("So the answer is: x."), {"chain": "x"})
    assert [p.id for p in prediction.passages] == ["a"]


def test_ircot_without_a_reader_answers_from_its_chain():
    prediction = run(IRCoT(ScriptedRetriever({}), reader="none"), *thoughts("Ada acted.", "So the answer is: Welles."))
    assert prediction.answer == "Welles"


def test_a_step_that_cannot_be_parsed_is_recorded_and_does_not_stop_the_program():
    program = IRCoT(ScriptedRetriever({QUERY: [passage("a")]}))
    prediction = run(program, {"wrong": "?"}, {"chain": "So the answer is: x."})
    assert prediction.answer == "x"
    assert counts(prediction.steps)["parse_failures"] == 1


def test_a_step_can_have_a_language_model_of_its_own():
    program = IRCoT(ScriptedRetriever({}), max_steps=1)
    program.lms = {"reader": DummyLM([{"chain": "So the answer is: the reader's."}])}
    assert run(program, *thoughts("Ada acted.")).answer == "the reader's"


class NarrowLM(DummyLM):
    """Refuses prompts of more than ``limit`` words; remembers those it took."""

    def __init__(self, answers, limit):
        super().__init__(answers)
        self.limit = limit
        self.prompts = []

    async def acall(self, prompt=None, messages=None, **kwargs):
        text = " ".join(message["content"] for message in messages)
        if len(text.split()) > self.limit:
            raise ContextWindowExceededError(message="too long")
        self.prompts.append(text)
        return await super().acall(prompt, messages=messages, **kwargs)


def test_a_prompt_that_outgrows_the_context_loses_demonstrations_first_then_the_longest_passages():
    retriever = ScriptedRetriever({QUESTION: [passage("long", "word " * 300), passage("short", "brief")]})
    program = RAG(retriever)
    demo = dspy.Example(context=["demonstration " * 100], question="?", answer="!")
    program.reader.demos = [demo, demo]
    lm = NarrowLM([{"answer": "Welles"}], limit=260)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        prediction = program(question=QUESTION)
    assert prediction.answer == "Welles"
    assert "demonstration" not in lm.prompts[0]
    assert QUESTION in lm.prompts[0]
    assert "brief" in lm.prompts[0]
    assert prediction.steps[1].calls > 3


def test_forward_works_inside_a_running_event_loop():
    async def notebook():
        return run(Direct(), {"answer": "yes"})

    assert asyncio.run(notebook()).answer == "yes"


def test_a_copy_of_a_program_shares_its_retriever():
    retriever = ScriptedRetriever({})
    assert RAG(retriever).deepcopy().retriever is retriever
