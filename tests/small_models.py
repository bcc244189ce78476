"""A toy step and a training of it, also run as a program that tests kill."""

import os
import shutil
import signal
import sys
from pathlib import Path

import torch
from transformers import T5Config, T5ForConditionalGeneration

from hoptimizer.models.store import resolve
from hoptimizer.optimizers.examples import Example, Task
from hoptimizer.optimizers.training import ClassifierRecipe, train_classifier
from hoptimizer.optimizers.training_loop import Progress

TASK = Task(step="relevant", inputs=("question", "passage"), output="relevant", labels=(False, True))
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Quito", "Tokyo", "Delhi", "Berlin", "Madrid", "Vienna", "Dublin")
RECIPE = ClassifierRecipe(epochs=3, batch=8, learning_rate=3e-4, max_tokens=32, checkpoint_steps=4)


def examples(cities=CITIES[:8]):
    """A passage is relevant where it names the question's city; there are three times as many that don't."""
    return [
        Example(
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


def train(folder, recipe=RECIPE, report=lambda _: None):
    """Train the toy step."""
    return train_classifier(TASK, examples(), examples(CITIES[8:]), recipe, folder, report)


if __name__ == "__main__":
    LAST = int(sys.argv[2])

    def kill(progress: Progress) -> None:
        if progress.step == LAST:
            os.kill(os.getpid(), signal.SIGKILL)

    train(Path(sys.argv[1]), report=kill)
