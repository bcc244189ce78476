"""Training EfficientRAG's models: the real MiniLM, atlas, a real MLflow store; scripted teachers."""

import inspect
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dspy
import mlflow
import pytest
from dspy.utils.exceptions import LMInvalidRequestError, LMServerError
from scripted import Listener, RefusingRetriever, ScriptedLM, ScriptedRetriever, passage
from serving import answer_in_fresh_process, kept
from small_models import CITIES, LABELER, TAGGER, labelled, tiny_deberta, tiny_t5, train_toy_tagger
from test_hop_labels import BOTH, BRIDGE, CORPUS, TOWER
from transformers import AutoTokenizer, BertTokenizerFast

from hoptimizer import Tracker, compile_variant, load_config, make_config
from hoptimizer.common.errors import ServiceError, UserError
from hoptimizer.common.text import words
from hoptimizer.eval.objective import Objective
from hoptimizer.models import build_adapter, build_lm
from hoptimizer.models.small.card import read_card
from hoptimizer.models.small.encoder import AlignedPair, PairTokenizer
from hoptimizer.models.small.labeler import TagDecision, chosen_words
from hoptimizer.models.small.loading import load_step_model
from hoptimizer.models.small.tagger import TaggerOutput, tag_texts
from hoptimizer.models.usage import BudgetExhausted
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers import CompileContext, build_optimizer
from hoptimizer.optimizers.labels.examples import TrainingExample
from hoptimizer.optimizers.labels.hop_labels import annotated, read_labels
from hoptimizer.optimizers.labels.synthesis import in_order, synthesize
from hoptimizer.optimizers.labels.tagger_examples import FILTER_TASK, labeler_examples
from hoptimizer.optimizers.training.run import save
from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig, check_encoder, train_tagger
from hoptimizer.optimizers.tuning.train_tagger import TrainTagger
from hoptimizer.programs import RAG, EfficientRAG, build_program

WEIGHTS = ("model.safetensors", "heads.safetensors")
WORDS = [
    *["data=atlas", "data.train=24", "data.dev=8", "retriever.k=4", "program=efficient_rag", "program.reader=none"],
    *["optimizer=train_tagger", "optimizer.epochs=1", "optimizer.negatives=2", "metric=recall"],
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The toy labeler, trained without a break."""
    folder = tmp_path_factory.mktemp("small") / "labeler"
    return folder, train_toy_tagger(folder)


def weights(folder):
    return [(folder / name).read_bytes() for name in WEIGHTS]


def test_learns_a_toy_task_and_says_so_on_its_card(trained):
    folder, card = trained
    assert (card.kind, card.step, card.labels) == ("labeler", "labeler", ("terminate", "continue", "finish"))
    assert card.train.classes == {"continue": 4, "finish": 4, "terminate": 24}
    assert card.scores["tag_f1"] > 0.8
    assert card.scores["token_f1"] > 0.5
    assert read_card(folder) == card


def test_same_seed_gives_identical_weights(trained, tmp_path):
    train_toy_tagger(tmp_path / "again")
    assert weights(tmp_path / "again") == weights(trained[0])
    train_toy_tagger(tmp_path / "other", TAGGER.model_copy(update={"seed": 8}))
    assert weights(tmp_path / "other") != weights(trained[0])


def test_killed_training_goes_on_to_identical_weights(trained, tmp_path):
    program = [sys.executable, str(Path(__file__).with_name("small_models.py")), str(tmp_path), "10", "labeler"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    steps = []
    assert train_toy_tagger(tmp_path, report=lambda progress: steps.append(progress.step)) == trained[1]
    assert steps == list(range(9, 33))  # the last checkpoint was after 8
    assert weights(tmp_path) == weights(trained[0])


def test_training_ends_early_where_nothing_gets_better(tmp_path):
    steps = []
    values = iter([0.5, 0.4, 0.3, 0.9])
    train_tagger(
        LABELER,
        labelled(),
        labelled(CITIES[8:]),
        TAGGER.model_copy(update={"epochs": 4, "patience": 2}),
        tmp_path,
        lambda progress: steps.append(progress.step),
        lambda model, tokenizer: (next(values), {}),
    )
    assert steps[-1] == 12  # three epochs of four
    assert read_card(tmp_path).scores["epoch"] == 1


def test_labels_copy_words_of_the_passage(trained):
    labeler = load_step_model(str(trained[0]), "labeler")
    passages = [example.inputs for example in labelled(CITIES[8:])]
    results = labeler.predict(passages)
    kept = [(inputs, result) for inputs, result in zip(passages, results, strict=True) if result["tag"] != "terminate"]
    assert kept
    for inputs, result in kept:
        assert result["useful"]
        assert in_order(inputs["passage"], result["useful"])
    assert all(result["useful"] == [] for result in results if result["tag"] == "terminate")


def test_company_changes_no_label(trained):
    labeler = load_step_model(str(trained[0]), "labeler")
    passages = [example.inputs for example in labelled(CITIES)]
    gather_steps = labeler.predict(passages)
    alone = [labeler.predict([inputs])[0] for inputs in passages]
    for one, other in zip(gather_steps, alone, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)
        assert (one["tag"], one["useful"]) == (other["tag"], other["useful"])


def test_any_query_and_any_passage(trained):
    labeler = load_step_model(str(trained[0]), "labeler")
    strange = [
        {"query": "?", "passage": ""},
        {"query": "word " * 5000, "passage": "Rome: Rome lies on the Tiber."},
        {"query": "Which river is in Rome?", "passage": "🍣 " * 600},
        {"query": "", "passage": "日本"},
    ]
    assert len(labeler.predict(strange)) == 4


def test_a_deberta_labels_after_a_load_as_it_did_in_training(tmp_path):
    """The paper's encoder has no fused attention, and its tokens begin with the space before them."""
    passages = labelled(CITIES[8:])
    trained = []

    def dev_score(model, tokenizer):
        trained[:] = tag_texts(model, tokenizer, [tuple(example.inputs.values()) for example in passages])
        return 1.0, {"card": {"threshold": 0.0}}

    config = TAGGER.model_copy(update={"base": str(tiny_deberta(tmp_path / "base")), "epochs": 1})
    card = train_tagger(LABELER, labelled(), passages, config, tmp_path / "labeler", dev_score=dev_score)
    labeler = load_step_model(str(tmp_path / "labeler"), "labeler")
    reading = TagDecision(card.labels, 0.0, card.token_threshold)
    said = [reading(example.inputs, *tagged) for example, tagged in zip(passages, trained, strict=True)]
    assert labeler.predict([example.inputs for example in passages]) == said
    assert all(
        result["useful"] and in_order(e.inputs["passage"], result["useful"])
        for e, result in zip(passages, said, strict=True)
    )


@pytest.mark.parametrize("base", ["deberta", "minilm"])
def test_words_are_copied_wherever_their_tokens_begin(base, tmp_path):
    """A token of DeBERTa's begins with the space before its word."""
    name = tiny_deberta(tmp_path / "base") if base == "deberta" else resolve(base)
    tokenizer = PairTokenizer(AutoTokenizer.from_pretrained(name), 96, shared=False)
    passage = "Oslo: Oslo lies on the Oslava and is a city."
    [aligned] = tokenizer.aligned([("Which river is in Oslo?", passage)])
    tagged = TaggerOutput([], [float(place is not None and place[0] == 1) for place in aligned.places])
    assert chosen_words([(1, passage)], aligned, tagged, 0.5) == [words(passage)]
    assert chosen_words([(0, "Which river is in Oslo?")], aligned, tagged, 0.5) == [[]]


def test_words_that_no_text_has_to_itself_are_chosen_over_both():
    """A query none of whose words is likely is not kept whole because what is known has likely ones."""
    tokenizer = PairTokenizer(AutoTokenizer.from_pretrained(resolve("minilm")), 96, shared=False)
    both = [(0, "Which river?"), (1, "Warsaw Poland")]
    [aligned] = tokenizer.aligned([(both[0][1], both[1][1])])

    def likely(query: float, known: float) -> TaggerOutput:
        return TaggerOutput([], [0.0 if place is None else (query, known)[place[0]] for place in aligned.places])

    assert chosen_words(both, aligned, likely(0.02, 0.99), 0.5) == [[], words("Warsaw Poland")]
    assert chosen_words(both, aligned, likely(0.02, 0.03), 0.5) == [words("Which river?"), words("Warsaw Poland")]


def test_a_filter_copies_from_both_texts(tmp_path):
    examples = [
        TrainingExample(
            {"query": f"Who is the mayor of {city}?", "known": f"Mayor {city}"}, "", ((0, (0, 3)), (1, (0, 5)))
        )
        for city in CITIES
    ]
    train_tagger(FILTER_TASK, examples, examples, TAGGER.model_copy(update={"epochs": 6}), tmp_path)
    [result] = load_step_model(str(tmp_path), "filter").predict(
        [{"query": "Who is the mayor of Lyon?", "known": "Mayor Lyon"}]
    )
    assert result == {"next_query": "Who Mayor"}


def test_examples_that_are_too_long_lose_their_end_and_are_counted(tmp_path):
    said = []
    examples = labelled()
    long = [
        replace(one, inputs={**one.inputs, "passage": f"{one.inputs['passage']}{' and so on' * 40}"})
        for one in examples[:3]
    ]
    config = TAGGER.model_copy(update={"epochs": 1})
    card = train_tagger(LABELER, [*examples, *long], examples, config, tmp_path, say=said.append)
    assert said == [f"3 of {len(examples) + 3} examples are longer than 48 tokens; their ends are cut"]
    assert card.scores["cut"] == 3
    tokenizer = PairTokenizer(AutoTokenizer.from_pretrained(tmp_path), 48, shared=False)
    [short, cut] = tokenizer.aligned([("Rome?", "A city."), ("Rome?", "A city." * 99)])
    assert (short.cut, cut.cut, len(cut.places)) == (False, True, 48)
    assert cut.places[1] == (0, (0, 4)), "the query is whole"


def test_labeler_and_filter_have_lengths_of_their_own(tmp_path):
    lengths = {step: TrainTagger()._config(context(tmp_path), step).max_tokens for step in ("labeler", "filter")}
    assert lengths == {"labeler": 384, "filter": 128}


def test_without_a_threshold_the_likeliest_tag_decides():
    labels, aligned = ("terminate", "continue", "finish"), AlignedPair({}, [])
    for tags, tag in (([0.5, 0.3, 0.2], "terminate"), ([0.4, 0.5, 0.1], "continue"), ([0.2, 0.3, 0.5], "finish")):
        assert TagDecision(labels, None, 0.5)({"passage": ""}, aligned, TaggerOutput(tags, []))["tag"] == tag


def test_a_tokenizer_of_another_checkpoint_is_refused(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "mixed")
    tokens = [f"token{number}" for number in range(40_000)]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tokens]))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    with pytest.raises(UserError, match="they belong to different checkpoints"):
        load_step_model(str(folder), "labeler")


def test_a_folder_without_its_heads_is_refused(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "headless")
    (folder / "heads.safetensors").unlink()
    with pytest.raises(UserError, match=r"heads.safetensors lacks the heads"):
        load_step_model(str(folder), "labeler")


def context(folder, program=None, trainset=(BRIDGE, TOWER), devset=(BRIDGE,), teacher=None, report=lambda *told: None):
    program = program or EfficientRAG(ScriptedRetriever({}), k=2)
    return CompileContext(
        program, trainset, devset, CORPUS, Objective.parse("recall"), teacher, 7, 4, folder, Listener(report)
    )


def bare(question):
    return question.model_copy(update={"passages": [], "hops": []})


def single(question):
    return question.model_copy(update={"passages": question.passages[1:], "hops": question.hops[1:]})


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"base": "minilm-large"}, {}, "unknown model 'minilm-large': did you mean 'minilm'"),
        ({"recall_weight": None}, {}, "set optimizer.ranked=false, or a number for optimizer.recall_weight"),
        ({}, {"program": RAG(ScriptedRetriever({}))}, "it is for program.name=efficient_rag"),
        ({"labels": "teacher"}, {}, "there is no teacher; name one"),
        ({}, {"trainset": [bare(BRIDGE)]}, "which no train question has"),
        ({}, {"devset": [bare(BRIDGE)]}, "which no dev question has"),
    ],
)
def test_what_cannot_be_learned_is_said_before_anything_is_spent(tmp_path, options, changes, message):
    with pytest.raises(UserError, match=message):
        TrainTagger(**options).check(context(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_an_encoder_that_could_not_be_served_is_refused_before_the_teacher_is_asked(tmp_path):
    """An encoder-decoder loads as an encoder does, and fails at the first example."""
    lm = ScriptedTeacher(taught)
    with pytest.raises(UserError, match="has a decoder, and a labeler or filter needs an encoder alone"):
        TrainTagger("teacher", base=str(tiny_t5(tmp_path / "t5"))).check(context(tmp_path, teacher=lm))
    assert lm.asked == []


def test_an_encoder_that_labels_otherwise_once_it_was_saved_is_refused(monkeypatch):
    def lossy(model, tokenizer, folder):
        save(model, tokenizer, folder)
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "do_lower_case": False}))

    check_encoder("minilm")
    monkeypatch.setattr("hoptimizer.optimizers.training.tagger.save", lossy)
    with pytest.raises(UserError, match="minilm: labels otherwise once it was saved and loaded"):
        check_encoder("minilm")


def test_a_variant_that_was_trained_is_not_tried_out_again(trained, tmp_path):
    program = EfficientRAG(ScriptedRetriever({}), k=2, filter=False)
    program.models["labeler"] = load_step_model(str(trained[0]), "labeler")
    (tmp_path / "work").mkdir()
    TrainTagger().check(context(tmp_path / "work", program))


def test_a_filter_that_has_nothing_to_learn_from_is_said(tmp_path):
    first, second = BRIDGE.hops
    hops = [
        first.model_copy(update={"answer": "I. M."}),  # which its passage does not say so
        second.model_copy(update={"question": "Where was I. M. born?"}),
    ]
    elsewhere = BRIDGE.model_copy(update={"hops": hops})
    with pytest.raises(UserError, match="the filter has nothing to learn from"):
        TrainTagger().compile(context(tmp_path, trainset=[elsewhere, single(TOWER)]))


def test_no_hop_that_leads_to_another_is_said(tmp_path):
    with pytest.raises(UserError, match="none of the 2 labelled train questions has a hop that leads to another"):
        TrainTagger().compile(context(tmp_path, trainset=[single(BRIDGE), single(TOWER)]))


# The four steps of a scripted teacher, which labels BRIDGE and TOWER right.
SPLIT = {
    "The Bridge": ["Who directed it?", "Where was she born?"],
    "The Tower": ["Who directed it?", "Where was he born?"],
}


class ScriptedTeacher(ScriptedLM):
    """Says what the script says; the script is told the fields and the prompt's last message."""

    async def acall(self, prompt=None, messages=None, **kwargs):
        text = messages[-1]["content"]
        field = next(
            name for name in ("subquestions", "after", "useful", "next_query") if f"[[ ## {name} ## ]]`" in text
        )
        self.asked.append((field, text))
        return [self._format_answer_fields(self.script(field, text))]


def taught(field, text):
    """What a good teacher says."""
    bridge = "Bridge" in text or "Moreau" in text
    if field == "subquestions":
        answers = ["Ines Moreau", "Lyon"] if bridge else ["Karl Adler", "Bern"]
        return {
            "subquestions": json.dumps(SPLIT["The Bridge" if bridge else "The Tower"]),
            "answers": json.dumps(answers),
        }
    if field == "after":
        return {"after": "[1]" if "2. Where" in text.rpartition("## subquestion ##")[2] else "[]"}
    if field == "useful":
        found = next(name for name in ("Ines Moreau.", "Karl Adler.", "Lyon", "Bern") if name in text)
        return {"useful": json.dumps([found.rstrip(".")])}
    return {"next_query": "Where born Ines Moreau" if bridge else "Where born Karl Adler"}


def changed(field, value):
    """A teacher that is good at everything but one field, and there only for The Tower."""

    def script(asked, text):
        tower = any(name in text for name in ("Tower", "Adler", " he born"))
        return taught(asked, text) | (value if asked == field and tower else {})

    return script


def synthesized(folder, script):
    told, lm = [], ScriptedTeacher(script)
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        made = synthesize([BRIDGE, TOWER], context(folder, teacher=lm), folder / "labels.jsonl", "labels")
    return made, lm, told


def test_a_teacher_labels_questions_in_four_steps(tmp_path):
    (bridge, tower), lm, _ = synthesized(tmp_path, taught)
    assert [(hop.query, hop.passage, hop.useful, hop.tag, hop.after) for hop in bridge.hops] == [
        (BRIDGE.question, "film", ["Ines Moreau"], "continue", []),
        ("Where born Ines Moreau", "moreau", ["Lyon"], "finish", [0]),
    ]
    assert tower.hops[1].asked == "Where was he born?"
    assert len(lm.asked) == 2 * (1 + 2 + 2 + 1)


@pytest.mark.parametrize("merged", [False, True])
def test_a_teachers_part_that_waits_for_two_others_gets_the_words_of_both(tmp_path, merged):
    found = {"film": "Ines Moreau", "tower": "Karl Adler", "other": "Lyon"}
    known = []

    def script(field, text):
        if field == "subquestions":
            asked = ["Who directed The Bridge?", "Who directed The Tower?", "Where did they meet?"]
            return {"subquestions": json.dumps(asked), "answers": json.dumps(list(found.values()))}
        if field == "after":
            return {"after": "[1, 2]" if "3. Where" in text.rpartition("## subquestion ##")[2] else "[]"}
        if field == "useful":
            passage = text.partition("[[ ## passage ## ]]")[2].partition("[[")[0]
            return {"useful": json.dumps([next(name for name in found.values() if name in passage)])}
        known.append(text.partition("[[ ## known ## ]]")[2].strip().partition("\n")[0])
        return {"next_query": "Where meet Ines Moreau Karl Adler"}

    lm = ScriptedTeacher(script)
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        [made] = synthesize([BOTH], context(tmp_path, teacher=lm), tmp_path / "labels.jsonl", "labels", merged)
    assert known == ["Ines Moreau Karl Adler"]
    last = made.hops[-1]
    assert (last.query, last.tag, last.after) == ("Where meet Ines Moreau Karl Adler", "finish", [0, 1])
    assert [hop.tag for hop in made.hops[:2]] == ["continue", "continue"]


def test_labels_of_a_compile_that_was_killed_are_made_anew(tmp_path):
    first, _, _ = synthesized(tmp_path, taught)
    with (tmp_path / "labels.jsonl").open("a") as file:
        file.write('{"id": "cut by a ki')
    again, _, _ = synthesized(tmp_path, taught)
    assert again == first == read_labels(tmp_path / "labels.jsonl")


def test_the_end_of_a_budget_ends_a_teacher_as_itself(tmp_path):
    def script(asked, text):
        raise BudgetExhausted

    with pytest.raises(BudgetExhausted):
        synthesized(tmp_path, script)


@pytest.mark.parametrize(
    ("field", "value", "failure"),
    [
        ("subquestions", {"subquestions": '["One?"]'}, "not one sub-question and answer for each passage"),
        ("subquestions", {"answers": '["Karl Adler", "Rome"]'}, "an answer that its passage does not hold"),
        ("after", {"after": "soon"}, "an output that could not be parsed"),
        ("after", {"after": "[1, 2]"}, "sub-questions that wait for each other in a circle"),
        ("after", {"after": "[7]"}, "a sub-question that waits for one that is not there"),
        ("useful", {"useful": '["Adler", "Karl"]'}, "words that are not the passage's, or not in its order"),
        ("useful", {"useful": '["Napoleon"]'}, "words that are not the passage's, or not in its order"),
        ("next_query", {"next_query": "Where did Karl live?"}, "a next query with words that neither"),
    ],
)
def test_what_a_teacher_gets_wrong_is_counted_and_skipped(tmp_path, field, value, failure):
    (bridge, tower), _, _ = synthesized(tmp_path, changed(field, value))
    assert bridge.failure is None
    assert tower.hops == []
    assert tower.failure.startswith(failure)


def test_a_question_whose_prompt_is_refused_is_skipped_and_an_outage_ends_the_labelling(tmp_path):
    def raising(error):
        def script(asked, text):
            if "Tower" in text:
                raise error
            return taught(asked, text)

        return script

    (bridge, tower), _, _ = synthesized(tmp_path, raising(LMInvalidRequestError("the prompt was filtered")))
    assert (bridge.failure, tower.hops) == (None, [])
    assert "the prompt was filtered" in tower.failure
    with pytest.raises(ServiceError, match=r"the teacher gave no answer: .*overloaded"):
        synthesized(tmp_path, raising(LMServerError("overloaded")))


def test_a_query_whose_search_is_refused_has_no_negatives_and_the_others_theirs():
    labels = [annotated(question, CORPUS) for question in (BRIDGE, TOWER)]
    other = passage("other")
    script = {hop.query: [other] for one in labels for hop in one.hops}
    refused = labels[0].hops[0].query
    examples = labeler_examples(labels, RefusingRetriever(script, refused), 1, finish=True)
    negative = {example.inputs["query"] for example in examples if example.inputs["passage"] == str(other)}
    assert negative == set(script) - {refused}


def test_skipped_questions_are_told_with_the_reason(tmp_path):
    told, lm = [], ScriptedTeacher(changed("useful", {"useful": "[]"}))
    with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        task = context(tmp_path, teacher=lm, report=lambda stage, *_: told.append(stage))
        assert len(TrainTagger(labels="teacher").gather(task, "train", [BRIDGE, TOWER])) == 1
    assert any(stage.startswith("labels of train: 1 of 2 questions skipped: words that are not") for stage in told)


def test_a_teacher_that_gets_all_wrong_ends_the_compile(tmp_path):
    lm = ScriptedTeacher(lambda field, text: {"subquestions": "[]", "answers": "[]"})
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with (
        dspy.context(adapter=adapter),
        pytest.raises(UserError, match="none of the 2 train questions could be labelled"),
    ):
        TrainTagger(labels="teacher").compile(context(tmp_path, teacher=lm))


def test_the_embedded_model_as_a_teacher_is_checked(tmp_path):
    """A 135M model seldom labels right; whatever it says is either used or counted."""
    lm = build_lm(load_config(None, ["data=atlas", "lm.default.max_tokens=96"]).lm["default"])
    with dspy.context(adapter=build_adapter()):
        made = synthesize([BRIDGE, TOWER], context(tmp_path, teacher=lm), tmp_path / "labels.jsonl", "labels")
    for labels in made:
        assert labels.hops or labels.failure
        assert all(in_order(hop.text, hop.useful) for hop in labels.hops)


def config(store, *words):
    """The config of the module's compiles, in its own store."""
    return load_config(None, [*WORDS, f"tracking.uri=sqlite:///{store}/mlflow.db", *words])


@pytest.fixture(scope="module")
def variant(store):
    return compile_variant(config(store))


def test_compiling_keeps_both_models_in_the_run(variant, store):
    steps = kept(variant.run_id, variant.config.tracking.uri, "steps")
    assert {folder.name for folder in steps.iterdir()} == {"labeler", "filter"}
    examples = mlflow.artifacts.list_artifacts(run_id=variant.run_id, artifact_path="examples")
    assert {Path(one.path).name for one in examples} == {"labels-train.jsonl", "labels-dev.jsonl"}
    assert set(variant.steps["labeler"]) >= {"token_f1", "tag_f1", "recall", "passages"}


def test_the_training_is_in_mlflow_as_curves(variant, store):
    client = mlflow.MlflowClient(f"sqlite:///{store}/mlflow.db")
    for name in ("labeler/loss", "labeler/token_f1", "labeler/tag_f1", "labeler/recall", "filter/loss"):
        history = client.get_metric_history(variant.run_id, f"workings/training/{name}")
        assert history, name
        assert [point.step for point in history] == sorted({point.step for point in history})


def test_retrieval_asks_no_language_model(variant):
    assert variant.after.metrics["lm_calls"] == 0
    assert variant.after.metrics["model_calls"] > 1
    assert variant.before.metrics["passages"] == 4
    assert variant.after.metrics["passages"] < 4


def test_compiling_again_gives_identical_models_and_says_that_eight_questions_choose_badly(variant, store):
    said = []
    again = compile_variant(config(store), name="again", report=lambda stage, *_: said.append(stage))
    assert "labeler: epoch and threshold rest on 8 dev questions alone; take 20 or more" in said
    assert again.run_id != variant.run_id
    for step in ("labeler", "filter"):
        folders = [kept(run, variant.config.tracking.uri, f"steps/{step}") for run in (variant.run_id, again.run_id)]
        assert weights(folders[0]) == weights(folders[1])


def test_a_variant_is_trained_on_from_where_it_is(variant, store):
    further = compile_variant(config(store, "program.filter=false"), run_id=variant.run_id)
    cards = [
        read_card(kept(run, variant.config.tracking.uri, "steps/labeler")) for run in (variant.run_id, further.run_id)
    ]
    assert cards[0].base == "minilm"
    assert cards[0].config["start"] is None
    assert cards[1].config["start"]


def test_the_served_model_answers_in_a_fresh_process(variant, store):
    answer = answer_in_fresh_process(variant, "Where was the author of Frankenstein born?", store)
    assert {step["step"] for step in answer["steps"]} >= {"retrieve", "labeler"}


def test_asking_shows_the_hops(variant, store):
    command = [sys.executable, "-m", "hoptimizer.cli", "ask", "--run", variant.run_id]
    question = "In which country is the city where E. M. Forster was born?"
    uri = f"tracking.uri=sqlite:///{store}/mlflow.db"
    shown = subprocess.run([*command, question, uri], capture_output=True, text=True, check=False, cwd=store)
    assert shown.returncode == 0, shown.stderr
    assert "retrieve" in shown.stdout
    assert any(tag in shown.stdout for tag in ("continue", "finish", "terminate"))
    assert Tracker(f"sqlite:///{store}/mlflow.db", "atlas").get(variant.run_id).info.status == "FINISHED"


@pytest.mark.parametrize("recipe", [{"max_tokens": 4}, {"epochs": 0}])
def test_wrong_recipes_are_refused(recipe):
    with pytest.raises(ValueError, match="greater than"):
        TaggerTrainingConfig(**recipe)


def test_the_papers_preset_gives_way_to_what_is_given_and_is_logged_in_full():
    words = ["data=atlas", "program=efficient_rag", "program.preset=paper", "program.max_queries=3"]
    words += ["optimizer=train_tagger", "optimizer.preset=paper", "optimizer.labels=annotations"]
    made = load_config(None, words)
    logged = made.public()
    assert logged["program"] == {
        "name": "efficient_rag",
        **EfficientRAG.presets["paper"],
        "preset": "paper",
        "max_queries": 3,
        "steps": {},
    }
    assert logged["optimizer"] == {
        "name": "train_tagger",
        **TrainTagger.presets["paper"],
        "preset": "paper",
        "labels": "annotations",
    }
    assert load_config(None, base=logged).public() == logged
    program, optimizer = build_program(made.program, ScriptedRetriever({}), 4), build_optimizer(made.optimizer)
    assert (made.k, logged["retriever"]["k"], load_config(None, [*words, "retriever.k=5"]).k) == (10, 10, 5)
    assert (program.later_k, program.max_rounds, program.queries) == (None, 4, "query")
    assert (optimizer.base, optimizer.labels, optimizer.tokens) == (
        "microsoft/deberta-v3-large",
        "annotations",
        {"labeler": 384, "filter": 128},
    )


def test_a_preset_that_is_not_known_is_said():
    with pytest.raises(UserError, match=r"optimizer.preset: input should be 'paper', got 'papers'"):
        load_config(None, ["data=atlas", "optimizer=train_tagger", "optimizer.preset=papers"])


@pytest.mark.parametrize("part", [EfficientRAG, TrainTagger])
def test_the_papers_presets_leave_nothing_to_our_own_defaults(part):
    own = {"self", "retriever", "k"}
    assert part.presets["paper"].keys() == inspect.signature(part.__init__).parameters.keys() - own


def test_one_length_for_both_models_is_read_as_two():
    old = {"data": "atlas", "program": "efficient_rag", "optimizer": {"name": "train_tagger", "max_tokens": 160}}
    made = make_config(old).optimizer
    assert (made.labeler_tokens, made.filter_tokens) == (160, 160)
