"""A compiled program as a run, or a folder, has it."""

from typing import Any

from hoptimizer.common.errors import UserError
from hoptimizer.programs import Ensemble, Program
from hoptimizer.tracking.tracker import VARIANT
from hoptimizer.workbench import Workbench


def variant_of(run_id: str) -> str:
    """Where a run keeps its program and its models."""
    return f"runs:/{run_id}/{VARIANT}"


def restore(bench: Workbench, state: dict[str, Any], variant: str) -> Program:
    """The program of a config in the state that was kept of a compiled one.

    Args:
        bench: makes the program; a model that its config names for a step goes before the one that was kept.
        state: the compiled one's.
        variant: the folder, or its URI, that has the models that took steps: small ones by the step in ``steps``, local
            fine-tuned language models by their name in ``lm``.

    Raises:
        UserError: the state is another program's, or a model can't be had.
    """
    if members := state["program"].get("members"):
        return Ensemble([restore(bench, member, variant) for member in members])
    program = bench.program()
    steps = [name for name, _ in program.named_predictors()]
    kept = sorted(set(state) - {"program"})
    if strange := sorted(set(steps) - set(kept)):
        raise UserError(
            f"the run's program has the steps {', '.join(kept)}, not {', '.join(strange)}: leave program.name and "
            "program.reader as the run has them"
        )
    # Steps that settings switched off, as an ablation does, are left out.
    program.load_state({name: state[name] for name in [*steps, "program"]})
    for step in state["program"].get("models", []):
        if step in steps and step not in program.models:
            program.models[step] = bench.step_model(f"{variant}/steps/{step}", step)
    tuned = {step: model for step, model in state["program"].get("lms", {}).items() if step in steps}
    lms = {model: bench.tuned_lm(model, variant) for model in set(tuned.values())}
    program.lms = {step: lms[model] for step, model in tuned.items()} | program.lms
    return program
