"""What a stranger gets wrong: files, and commands that each end in one line, with exit code 2 or, where a server is out
of reach, 1."""

from pathlib import Path

FILES = {
    "list.yaml": "- data\n",
    "broken.yaml": "data: [\n",
    "tab.yaml": "data: atlas\n\tseed: 3\n",
    "twice.yaml": "data: atlas\ndata: other\n",
    "file.jsonl": "{}\n",
    "taken/x": "",
    "kept.db": "",
    "grid.yaml": "base: {data: atlas}\ngird: {retriever.k: [1]}\n",
    "seeds.yaml": "base: {data: atlas}\nseeds: many\n",
}
_KEPT = "tracking.uri=sqlite:///kept.db"  # a store that is there
# The words of a command, and what its line must say.
MISTAKES = [
    (["compile"], ["data: required"]),
    (["compile", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["compile", "data=nowhere"], ["nowhere"]),
    (["compile", "data=some/nowhere"], ["nowhere", "no such folder"]),
    (["compile", "data=atlas", "program=irctt"], ["'irctt'", "did you mean 'ircot'"]),
    (["compile", "data=atlas", "optimizer=gepaa"], ["optimizer.name", "'gepaa'", "known:"]),
    (["compile", "data=atlas", "metric=f2"], ["metric", "'f2'"]),
    (["compile", "data=atlas", "wrong.key=1"], ["wrong", "unknown key"]),
    (["compile", "data=atlas", "--split", "tset"], ["'tset'", "split"]),
    (["compile", "data=atlas", "data.train=100000"], ["100000", "train"]),
    (["compile", "data=atlas", "data.train=0"], ["data.train"]),
    (["compile", "data=atlas", "data.train=-3"], ["data.train"]),
    (["compile", "data=atlas", "data.train=many"], ["data.train", "many"]),
    (["compile", "data=atlas", "program.max_stepps=3", "program=ircot"], ["max_stepps", "max_steps"]),
    (["compile", "data=atlas", "program=ircot", "program.max_steps=0"], ["program.max_steps"]),
    (["compile", "data=atlas", "program=ircot", "program.max_steps=two"], ["program.max_steps", "two"]),
    (["compile", "data=atlas", "program.reader=cott"], ["program.reader", "cott"]),
    (["compile", "data=atlas", "retriever=bm26"], ["retriever.name", "'bm26'"]),
    (["compile", "data=atlas", "retriever.k=0"], ["retriever.k"]),
    (["compile", "data=atlas", "optimizer=gepa", "program=direct"], ["lm.reflection"]),
    (["compile", "data=atlas", "optimizer.max_demos=2"], ["max_demos"]),
    (["compile", "data=atlas", "metric={f1: 1, lm_cals: -0.1}"], ["lm_cals"]),
    (["compile", "data=atlas", "metric={lm_calls: -0.1}"], ["metric", "f1"]),
    (["compile", "data=atlas", "metric=accuracy"], ["lm.judge"]),
    (["compile", "data=atlas", "lm.raeder=openai/x"], ["lm.raeder"]),
    (["compile", "data=atlas", "lm.default.temprature=1"], ["temprature", "temperature"]),
    (["compile", "data=atlas", "lm.default.temperature=hot"], ["lm.default.temperature", "hot"]),
    (["compile", "data=atlas", "lm.default.max_tokens=0"], ["max_tokens"]),
    (["compile", "data=atlas", "seed=-1"], ["seed"]),
    (["compile", "data=atlas", "seed=x"], ["seed"]),
    (["compile", "data=atlas", "workers=0"], ["workers"]),
    (["compile", "data=atlas", "max_unanswered=2"], ["max_unanswered"]),
    (["compile", "data=atlas", "data=", "program=direct"], ["data: expected a name after =, got nothing"]),
    (["eval", "data=atlas", "program="], ["program: expected a name after =, got nothing"]),
    (["eval", "data=atlas", "lm=", "program=direct"], ["lm: expected a name after =, got nothing"]),
    (["eval", "data=[x]"], ["data: expected keys such as name", "got list"]),
    (["eval", "data=atlas", "lm=${oc.env:NOT_SET}"], ["lm.default.model: ", "'NOT_SET' not found; set it"]),
    (["compile", "data=atlas", "program=my.module:Thing"], ["my.module"]),
    (["compile", "a.yaml", "b.yaml"], ["b.yaml", "one config file"]),
    (["compile", "data=atlas", "key.=1"], ["key"]),
    (["compile", "data=atlas", "lm=local/no-such-model", "program=direct", "retriever=bm25"], ["no-such-model"]),
    (["compile", "data=atlas", "lm=gpt-4o", "program=direct"], ["gpt-4o"]),
    (["compile", "data=atlas", "lm={model: openai/m, api_base: 127.0.0.1:1/v1}"], ["lm.default.api_base", "begin it"]),
    (["compile", "data=atlas", "lm=minilm", "program=direct"], ["minilm", "local/minilm"]),
    (["compile", "data=atlas", "lm=openai/gpt-4o", _KEPT], ["lm.default: openai/gpt-4o", "OPENAI_API_KEY"]),
    (["compile", "data=atlas", "lm.teacher=openai/gpt-4o", _KEPT], ["lm.teacher: openai/gpt-4o", "OPENAI_API_KEY"]),
    (["eval", "data=atlas", "lm=openai/gpt-4o", _KEPT], ["lm.default: openai/gpt-4o", "OPENAI_API_KEY"]),
    (["compile", "list.yaml"], ["list.yaml", "not a YAML mapping"]),
    (["compile", "broken.yaml"], ["broken.yaml", "not a YAML mapping"]),
    (["compile", "tab.yaml"], ["tab.yaml: not a YAML mapping", "a tab character", "at line 2, column 1"]),
    (["compile", "twice.yaml"], ["twice.yaml: not a YAML mapping", "duplicate key data at line 2"]),
    (["compile", "data=file.jsonl"], ["file.jsonl"]),
    (["eval", "data=atlas", "data.dev=1", "lm=local/no-such-model", "program=direct"], ["no-such-model"]),
    (["eval", "--run", "0" * 32], ["0" * 32, "hop compare"]),
    (["eval", "data=atlas", "data.dev=1", "program=direct", "tracking.uri=nonsense://x"], ["tracking.uri", "nonsense"]),
    (["eval", "data=atlas", "program.steps.reeder=x", "program=direct"], ["reeder"]),
    (["eval", "data=atlas", "data.dev=1", "program=direct", "program.steps.reader=./no-folder"], ["no-folder"]),
    (["compare", "data=atlas", "tracking.uri=sqlite:///new.db"], ["no run", "hop compile"]),
    (["compare", "grid.yaml", "1f2e"], ["grid.yaml", "give the file or the runs"]),
    (["compare", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["index", "info", "data=atlas", "retriever=hybrid", "retriever.of=[bm25, oracle]"], ["retriever.of: oracle"]),
    (["study", "nowhere.yaml"], ["nowhere.yaml", "no such config file"]),
    (["study", "a.yaml", "b.yaml"], ["b.yaml", "one study file"]),
    (["study", "grid.yaml"], ["gird"]),
    (["study", "seeds.yaml"], ["seeds"]),
    (["ask", " ", "data=atlas"], ["question"]),
    (["ask", "Who?"], ["data: required"]),
    (["ask", "data=nowhere"], ["nowhere"]),
    (["models", "pull", "smollm"], ["smollm"]),
    (["data", "check", "nowhere"], ["nowhere"]),
    (["data", "new", "taken"], ["taken"]),
    (["data", "import", "hotpot", "x.json", "--out", "o"], ["hotpotqa"]),
    (["data", "import", "hotpotqa", "x.json", "--out", "o"], ["x.json"]),
    (["data", "join", "atlas=x", "--out", "o"], ["atlas=x"]),
    (["index", "search", "x", "data=atlas", "retriever.name=bm26"], ["retriever.name", "'bm26'"]),
    (["index", "search", "x", "data=atlas", "retriever.checkpoint=no-such-checkpoint"], ["no-such-checkpoint"]),
    (["index", "info", "data=nowhere"], ["nowhere"]),
    (["doctor", "lm.default.modle=x"], ["modle"]),
]  # fmt: skip
_NOBODY = ("data=atlas", "lm.default=openai/x", "lm.default.api_base=http://127.0.0.1:9/v1")
OUTAGES = [([verb, *_NOBODY, _KEPT], ["lm.default: openai/x", "127.0.0.1:9"]) for verb in ("compile", "eval")]


def write_files(folder: Path) -> None:
    """Write the files that some of the commands name into a folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
