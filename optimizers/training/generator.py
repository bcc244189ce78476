"""Fine-tuning of a language model that writes for a step (RA-ISF, section 3.2; cross-entropy, equation 1)."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from hoptimizer.common.errors import UserError
from hoptimizer.eval.metrics import f1
from hoptimizer.models.small.card import Card
from hoptimizer.models.small.fields import prompt, written
from hoptimizer.models.small.generator import StepGenerator, prompt_tokens
from hoptimizer.optimizers.labels.examples import Task, TrainingExample
from hoptimizer.optimizers.training.language_model import (
    TokenizedExample,
    WriterTrainingConfig,
    load_base,
    train_writer,
)
from hoptimizer.optimizers.training.loop import TrainingReport
from hoptimizer.optimizers.training.run import TrainingFolder, gpu_memory


class GeneratorTrainingConfig(WriterTrainingConfig):
    """How a language model is trained to write a field.

    Attributes:
        max_new_tokens: the most tokens of an output.
    """

    base: str = Field(default="smollm2-135m-instruct", min_length=1)
    epochs: int = Field(default=3, ge=1)
    batch: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    max_tokens: int = Field(default=512, ge=8)
    max_new_tokens: int = Field(default=128, ge=1)


def train_generator(
    task: Task,
    examples: Sequence[TrainingExample],
    dev: Sequence[TrainingExample],
    config: GeneratorTrainingConfig,
    folder: Path,
    report: TrainingReport = lambda _: None,
) -> Card:
    """Fine-tune a causal or sequence-to-sequence model and save it with its card in a folder.

    Called again after the process was killed, it resumes from the last checkpoint and reaches the same weights. Called
    again after it finished, it returns the card. The epoch with the least loss on dev is kept.

    Args:
        task: the step and its fields.
        examples: the examples to learn from.
        dev: the examples that the epoch is chosen on, and that the outputs of the finished model are scored on.
        config: how the model is trained.
        folder: a folder for this model alone.
        report: is told of the progress after every update.

    Returns:
        the card.

    Raises:
        UserError: there are no examples, the base can't be loaded, the training diverges, a GPU has too
            little memory, or the folder holds something else.
    """
    for name, some in (("train", examples), ("dev", dev)):
        if not some:
            raise UserError(f"step {task.step!r}: there are no {name} examples; take more questions")
    training_folder = TrainingFolder(task, config, examples, dev, folder)
    if finished := training_folder.finished():
        return finished
    model, tokenizer = load_base(config)
    seq2seq = model.config.is_encoder_decoder
    rows, dev_rows = ([_row(tokenizer, task, one, config, seq2seq) for one in some] for some in (examples, dev))
    with gpu_memory(config.base, "take a smaller optimizer.base"):
        model, best = train_writer(model, tokenizer, rows, dev_rows, config, training_folder.key, folder, report)
    card = training_folder.card(
        best.facts, best.epoch, kind="generator", listed=task.listed, max_new_tokens=config.max_new_tokens
    )
    training_folder.save(model, tokenizer)
    results = StepGenerator(folder, card).predict([example.inputs for example in dev])
    card = card.model_copy(update={"scores": {**card.scores, **_writing_scores(task, dev, results)}})
    training_folder.finish(card)
    return card


def _row(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    example: TrainingExample,
    config: GeneratorTrainingConfig,
    seq2seq: bool,
) -> TokenizedExample:
    read = prompt_tokens(tokenizer, prompt(example.inputs, task.inputs, task.output), config.max_tokens)
    output = written(example.output if isinstance(example.output, list) else str(example.output))
    if seq2seq:
        return read, tokenizer(text_target=output, split_special_tokens=True)["input_ids"][: config.max_new_tokens]
    write = tokenizer(f" {output}", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    write = write[: config.max_new_tokens - 1]
    return read, [*write, tokenizer.eos_token_id]


def _writing_scores(
    task: Task, dev: Sequence[TrainingExample], results: Sequence[dict[str, object]]
) -> dict[str, float]:
    """The mean token F1 of the outputs, the share of outputs that are exactly right, and n, the number of outputs."""
    pairs = [
        (_joined(result[task.output]), _joined(example.output)) for example, result in zip(dev, results, strict=True)
    ]
    return {
        "f1": sum(f1(given, [gold]) for given, gold in pairs) / len(pairs),
        "exact": sum(given == gold for given, gold in pairs) / len(pairs),
        "n": float(len(pairs)),
    }


def _joined(output: object) -> str:
    return "\n".join(output) if isinstance(output, list) else str(output)
