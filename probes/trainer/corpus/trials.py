"""Rows of the table as runs: a case in a model, with a seed that also picks the layer's neighbours in the rotation."""

from typing import NamedTuple

from harness.runs import settings

from .cases import ANY, PLANTED, Case

# Steps by which the onset moves from seed to seed.
SHIFTS = (0, 7, 13)


class Trial(NamedTuple):
    """One run of a case."""

    name: str
    case: Case
    model: str
    precision: str
    optimizer: str
    seed: int
    # The planted layer; empty for a fault of the run.
    layer: str
    onset: int

    def arguments(self):
        """The trainer's arguments, the fault among them."""
        fault = ("--fault", self.planted()) if self.case.fault else ()
        return (*self.base(), *self.case.arguments, *fault)

    def base(self):
        """The arguments without the fault."""
        steps = self.case.steps[self.model]
        around = self.case.around.get(self.model, ())
        return (*settings(self.model, self.precision, self.optimizer, self.seed, steps), *around)

    def planted(self):
        """The fault as the trainer takes it."""
        return f"{self.case.fault}@{self.onset}" + (f":{self.layer}" if self.layer else "")

    def named(self):
        """The layer that a finding has to name: a path, empty for the run, None where any will do."""
        if self.case.layer == ANY:
            return None
        return self.layer if self.case.layer == PLANTED else ""

    def key(self):
        """What a result depends on besides the programs."""
        return repr((self.arguments(), self.case.every, self.case.codes, self.case.beside, self.named(), self.onset, self.case.within, self.case.cure))


def trials(cases, seeds):
    """All runs of the cases: in every model, with every seed, and in every layer that a row names."""
    for case in cases:
        for model in case.models:
            for place, layer in enumerate(case.layers.get(model, ("",))):
                for turn, seed in enumerate(seeds):
                    yield _trial(case, model, layer, seed, turn + place)


def _trial(case, model, layer, seed, turn):
    at = case.at[model]
    optimizers = case.optimizers[model]
    return Trial(
        name="-".join(filter(None, (case.name, model, layer, str(seed)))),
        case=case,
        model=model,
        precision=case.precisions[turn % len(case.precisions)],
        optimizer=optimizers[turn % len(optimizers)],
        seed=seed,
        layer=layer,
        onset=at + SHIFTS[turn % len(SHIFTS)] if at else 0,
    )
