"""A toy step and a training of it, also run as a program that tests kill."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import sentencepiece
import torch
from transformers import (
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from hoptimizer.models import LMSettings, build_lm
from hoptimizer.models.weights.store import resolve
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.labels.tagger_examples import labeler_task
from hoptimizer.optimizers.training.classifier import ClassifierTrainingConfig, train_classifier
from hoptimizer.optimizers.training.dspy_provider import LocalProvider
from hoptimizer.optimizers.training.loop import TrainingProgress
from hoptimizer.optimizers.training.tagger import TaggerTrainingConfig, train_tagger

TASK = Task(step="relevant", inputs=("question", "passage"), output="relevant", labels=(False, True))
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Quito", "Tokyo", "Delhi", "Berlin", "Madrid", "Vienna", "Dublin")
CONFIG = ClassifierTrainingConfig(epochs=3, batch=8, learning_rate=3e-4, max_tokens=32, checkpoint_steps=4)

LM_OPTIONS = {"epochs": 4, "batch": 2, "learning_rate": 3e-3, "lora": 0, "checkpoint_steps": 4}


def examples(cities=CITIES[:8]):
    """A passage is relevant where it names the question's city; there are three times as many that don't."""
    return [
        TrainingExample(
            {"question": f"Which river flows through {city}?", "passage": f"{other} lies on a river and is a city."},
            city == other,
        )
        for city in cities
        for other in [city, *[c for c in cities if c != city][:3]]
    ]


def tiny_t5(folder):
    """An untrained T5 with MiniLM's tokenizer: the store has no encoder-decoder."""
    config = T5Config(
        vocab_size=30522,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        eos_token_id=102,
    )
    torch.manual_seed(0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(Path(resolve("minilm")) / file, folder)
    return folder


def tiny_lm(folder):
    """An untrained causal language model with SmolLM2's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m-instruct"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_deberta(folder):
    """An untrained DeBERTa in the layout of microsoft/deberta-v3-large, whose tokenizer is a SentencePiece model."""
    folder.mkdir()
    texts = [text for example in labelled(CITIES) for text in example.inputs.values()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "spm"),
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
    )
    (folder / "spm.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))
    config = DebertaV2Config(
        vocab_size=128,  # more than the tokenizer has, as published
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    )
    torch.manual_seed(0)
    DebertaV2ForMaskedLM(config).save_pretrained(folder)
    return folder


def train(folder, config=CONFIG, report=lambda _: None):
    """Train the toy step."""
    return train_classifier(TASK, examples(), examples(CITIES[8:]), config, folder, report)


LABELER = labeler_task(finish=True)
TAGGER = TaggerTrainingConfig(epochs=8, batch=8, learning_rate=6e-4, max_tokens=48, checkpoint_steps=4, patience=None)


def labelled(cities=CITIES[:8]):
    """A passage is kept where it names the query's city, whose river counts; every other query goes on from it."""
    examples = []
    for number, city in enumerate(cities):
        tag = ("continue", "finish")[number % 2]
        query = f"Where does the river through {city} end?" if number % 2 == 0 else f"Which river is in {city}?"
        for other in [city, *[c for c in cities if c != city][:3]]:
            text = f"{other}: {other} lies on the {other[:3]}ava and is a city."
            start = text.index(f"{other[:3]}ava")
            inputs = {"query": query, "passage": text}
            if other == city:
                examples.append(TrainingExample(inputs, tag, ((1, (start, start + 6)),)))
            else:
                examples.append(TrainingExample(inputs, "terminate"))
    return examples


def train_toy_tagger(folder, config=TAGGER, report=lambda _: None):
    """Train the toy labeler."""
    return train_tagger(LABELER, labelled(), labelled(CITIES[8:]), config, folder, report)


def conversations(cities=CITIES[:8]):
    """Each city's river is called after it."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"Which river flows through {city}?"},
                {"role": "assistant", "content": f'{{"answer": "{city}ava"}}'},
            ]
        }
        for city in cities
    ]


def start_toy_lm(folder, report=lambda _: None, **options):
    """Fine-tune a tiny language model behind DSPy's interface; DSPy's job."""
    base = folder / "base"
    lm = build_lm(LMSettings(model=f"local/{base if base.exists() else tiny_lm(base)}"))
    lm.provider = LocalProvider()
    given = {"folder": folder / "tuned", "dev": conversations(CITIES[8:]), "report": report, **LM_OPTIONS, **options}
    return lm.finetune(conversations(), "chat", given)


def train_toy_lm(folder, report=lambda _: None, **options):
    """The fine-tuned tiny language model."""
    return start_toy_lm(folder, report, **options).result()


if __name__ == "__main__":
    TRAININGS = {"relevant": train, "labeler": train_toy_tagger, "lm": train_toy_lm}
    LAST, TRAIN = int(sys.argv[2]), TRAININGS[sys.argv[3]]

    def kill(progress: TrainingProgress) -> None:
        if progress.step == LAST:
            os.kill(os.getpid(), signal.SIGKILL)

    TRAIN(Path(sys.argv[1]), report=kill)
