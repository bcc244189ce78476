"""``hop ask``: one question or a chat, its passages with their text, and ``--dry-run``, which asks nothing."""

import io
import json
import sys
from uuid import uuid4

import dspy
import pytest
from chat_server import ChatServer
from dspy.utils import DummyLM
from scripted import ScriptedRetriever, passage

from hoptimizer.cli import main
from hoptimizer.cli.screen import answers
from hoptimizer.cli.screen.console import TextConsole
from hoptimizer.programs import RAG, IRCoT

QUICK = ["data=atlas", "program=rag", "program.reader=none", "retriever=bm25", "retriever.k=2"]


@pytest.fixture
def hop(monkeypatch, capsys, tmp_path):
    """Runs ``hop`` in an empty folder on a scripted input; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words, entered=""):
        monkeypatch.setattr(sys, "argv", ["hop", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(entered))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def test_without_a_question_each_line_is_one_and_models_are_loaded_once(hop):
    code, out, err = hop("ask", *QUICK, "--json", entered="Who painted the Mona Lisa?\n\nWhere is Lyon?\n")
    assert code == 0
    assert [len(json.loads(line)["passages"]) for line in out.splitlines()] == [2, 2]
    assert sum("·" in line for line in err.splitlines()) == 1


def test_a_question_that_can_not_be_asked_does_not_end_a_chat(hop):
    code, out, err = hop("ask", *QUICK, "--json", entered="Where is \ud800?\nWhere is Lyon?\n")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "hop: question:" in err


def test_the_passages_of_an_answer_are_shown_with_the_start_of_their_text(hop):
    _, out, _ = hop("ask", "Who painted the Mona Lisa?", *QUICK)
    listed = out.partition("\nfrom\n")[2].splitlines()
    assert len([line for line in listed if line.startswith("  ") and len(line.split()) > 5]) >= 2


def test_what_was_found_and_left_out_has_its_title():
    record = {"step": "retrieve", "inputs": {"query": "who?"}, "outputs": {"passages": ["p1"]}, "failure": None}
    file = io.StringIO()
    for part in answers.answer("who?", {"answer": "", "passages": [], "steps": [record]}, {"p1": "Lyon"}):
        TextConsole(file).print(part)
    assert "Lyon" in file.getvalue()
    assert "No answer" in file.getvalue()


@pytest.mark.parametrize("said", ["{answer}", "Lyon"])
def test_a_template_that_a_model_repeats_is_no_answer(said):
    program = RAG(ScriptedRetriever({}), k=1, reader="direct")
    with dspy.context(lm=DummyLM([{"answer": said}])):
        prediction = program(question="Where?")
    assert prediction.answer == ("Lyon" if said == "Lyon" else "")
    failure = prediction.steps[-1].failure
    assert failure == (None if said == "Lyon" else "the model repeated the template of answer")


def test_a_chain_that_repeats_itself_in_other_letters_ends():
    program = IRCoT(ScriptedRetriever({"Where?": [passage("p")]}), k=1, thoughts="phrase", reader="none")
    with dspy.context(lm=DummyLM([{"thought": "It is in France."}, {"thought": "it is in France"}])):
        prediction = program(question="Where?")
    assert [record.step for record in prediction.steps].count("reason") == 2


def test_a_dry_run_asks_nothing_and_says_what_would_be_asked(hop, tmp_path):
    lms = ["lm.teacher=openai/gpt-4o", "lm.teacher.api_key=sk-secret", "lm.reader=openai/small"]
    words = ["data=atlas", "program=ircot", "data.train=8", "data.dev=4", *lms, "--dry-run"]
    code, out, err = hop("compile", *words, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["config"]["program"]["max_steps"] == 8
    assert told["asked"] == [
        {"model": "local/smollm2-135m-instruct", "roles": ["reason", "follow_up"]},
        {"model": "openai/small", "roles": ["reader"]},
        {"model": "openai/gpt-4o", "roles": ["teacher"]},
    ]
    assert (told["questions"], told["basis"]) == (8, "not known")
    assert told["optimizer"]["runs"] > 0
    assert "sk-secret" not in out + err
    assert list(tmp_path.iterdir()) == [], "nothing is written"


def test_a_dry_run_asks_no_server_where_there_is_no_store_yet(hop):
    with ChatServer() as server:
        words = ["data=atlas", "data.dev=2", "program=direct", f"lm={{model: openai/x, api_base: '{server.url}'}}"]
        code, _, err = hop("eval", *words, "--dry-run")
        assert code == 0, err
    assert (server.bodies, server.checks, server.headers) == ([], [], [])


def test_a_dry_run_knows_the_costs_of_earlier_runs(hop, tmp_path):
    words = [*QUICK, "data.dev=3"]
    assert hop("eval", *words, "--json")[0] == 0
    told = json.loads(hop("eval", *words, "--dry-run", "--json")[1])
    assert (told["questions"], told["costs"]["lm_calls"]) == (3, 0)
    (tmp_path / "s.yaml").write_text("grid: {retriever.k: [1, 2]}\n")
    code, out, _ = hop("study", "s.yaml", *words, "--dry-run")
    assert code == 0
    assert "2 runs to come, 0 finished; 6 questions" in out
    assert "retriever.k=2" in out


def test_a_dry_run_tells_tokens_and_the_price_that_is_known_of_them(hop):
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]") as server:
        words = ["data=atlas", "program=direct", "data.dev=3"]
        served = [f"lm.default=openai/{uuid4().hex}", f"lm.default.api_base={server.url}", "lm.default.api_key=none"]
        assert hop("eval", *words, *served)[0] == 0
    code, out, err = hop("eval", *words, "data.dev=60", "lm.default=openai/gpt-4o", "--dry-run")
    assert code == 0, err
    line = " ".join(out.split())
    # At $2.50 and $10 a million tokens.
    assert "about 60 calls of language models, cached ones among them; about 6,000 prompt and 600 completion" in line
    assert "tokens; about $0.02 (cost of a question: a run with another model)" in line


@pytest.mark.parametrize("optimizer", ["labeled_few_shot", "bootstrap_few_shot", "bootstrap_random_search"])
def test_a_dry_run_of_a_compile_counts_what_the_compile_asks(hop, optimizer):
    with ChatServer(lambda _: "[[ ## answer ## ]]\nLyon\n\n[[ ## completed ## ]]") as server:
        # Of a name that no cache knows: an earlier test's server may have had the same port.
        lm = [f"lm.default=openai/{uuid4().hex}", f"lm.default.api_base={server.url}", "lm.default.api_key=sk-1"]
        sizes = ["data.train=8", "data.dev=12", "data.test=3"]
        words = ["data=atlas", "program=direct", *lm, *sizes, f"optimizer={optimizer}", "--split", "test", "--json"]
        code, out, err = hop("compile", *words, "--dry-run")
        assert (code, server.bodies) == (0, []), err
        assert hop("compile", *words)[0] == 0
    told = json.loads(out)
    about = told["questions"] + told["optimizer"]["runs"]
    if optimizer == "bootstrap_random_search":  # some of its programs are alike here, and asked for once
        assert len(server.bodies) <= about
    else:
        assert len(server.bodies) == about


@pytest.mark.parametrize(
    ("optimizer", "times"),
    [
        ("labeled_few_shot", 2),
        ("{name: labeled_few_shot, prompt_formats: [json]}", 2),
        ("{name: labeled_few_shot, prompt_formats: [json, plain, chat]}", 3),
    ],
)
def test_a_dry_run_counts_the_prompt_formats_that_are_tried(hop, optimizer, times):
    words = ["data=atlas", "data.train=4", "data.dev=6", "data.test=1", "program=direct", "--split", "test"]
    told = json.loads(hop("compile", *words, f"optimizer={optimizer}", "--dry-run", "--json")[1])
    assert told["optimizer"]["runs"] == times * 6, "the formats, or a probe and the program in the only one"


def test_a_choice_of_the_prompt_format_takes_as_many_calls_as_are_estimated(hop):
    words = ["data=atlas", "data.train=4", "data.dev=3", "data.test=1", "program=direct", "optimizer=labeled_few_shot"]
    lm = ["lm=local/smollm2-135m-instruct", "lm.default.max_tokens=8"]
    code, out, err = hop("compile", *words, *lm, "--split", "test", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["spent"]["calls"] == told["estimate"]["calls"] == 2 * 3


def test_a_dry_run_counts_the_prompt_formats_of_each_search_in_a_chain(hop):
    words = ["data=atlas", "data.train=4", "data.dev=6", "program=direct", "--dry-run", "--json"]

    def runs(formats):
        part = f"{{name: labeled_few_shot, prompt_formats: {formats}}}"
        chain = f"optimizer={{name: better_together, strategy: [{part}, {part}]}}"
        return json.loads(hop("compile", *words, chain)[1])["optimizer"]["runs"]

    assert runs("[json]") == 4 * 6, "a probe, the program as it is, and what each search made"
    assert runs("[json, plain]") == 5 * 6, "the program as it is, and each search's trials"


def test_a_dry_run_says_what_can_not_be_done(hop):
    code, _, err = hop("compile", "data=atlas", "program=direct", "optimizer=gepa", "--dry-run")
    assert code == 2
    assert "lm.reflection" in err


def test_the_question_may_stand_behind_the_config(hop):
    question = "Who painted the Mona Lisa?"
    behind, before = hop("ask", *QUICK, question, "--json"), hop("ask", question, *QUICK, "--json")
    assert behind[0] == 0, behind[2]
    assert json.loads(behind[1])["passages"] == json.loads(before[1])["passages"]


def test_a_question_may_begin_with_a_word_and_a_sign_of_equality(hop):
    question = "E=mc2 was found by whom?"
    for words in ([question, *QUICK], [*QUICK, question]):
        code, out, _ = hop("ask", *words)
        assert (code, out.splitlines()[0].strip()) == (0, question)
    code, _, err = hop("ask", "E=mc2", *QUICK)
    assert (code, "E: unknown key" in err) == (2, True)
    code, out, _ = hop("ask", "retriever={name: bm25, k: 2}", "Where is Lyon?", *QUICK, "--json")
    assert (code, len(json.loads(out)["passages"])) == (0, 2)
