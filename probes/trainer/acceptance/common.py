"""What all items share: the models, the settings of a run, and how a report is read."""

MODELS = ("mlp", "conv", "transformer")
PRECISIONS = ("fp32", "bf16", "fp16", "fp16-masters", "bf16-masters")
PURE = ("fp16-pure", "bf16-pure")
SEEDS = (0, 1, 2)
# The transformer learns with Adam; SGD needs a hundred times the steps.
OPTIMIZERS = {"mlp": ("sgd", "adam", "adamw"), "conv": ("sgd", "adam", "adamw"), "transformer": ("adam",)}


def settings(model, precision, optimizer, seed, steps):
    """The arguments of a run."""
    return (
        *("--model", model, "--precision", precision, "--optimizer", optimizer),
        *("--seed", str(seed), "--steps", str(steps)),
    )


def brief(finding):
    """A finding in a few words."""
    return f"{finding['code']} {finding['layer'] or 'run'} @{finding['onset_step']} ({finding['severity']})"


def everything(findings):
    """The findings, each before those that follow from it."""
    return [found for root in findings for found in (root, *root["consequences"])]


def listed(findings):
    """Findings in a line, what follows from one in brackets behind it."""

    def one(finding):
        follows = ", ".join(brief(consequence) for consequence in finding["consequences"])
        return brief(finding) + (f" [{follows}]" if follows else "")

    return "; ".join(one(finding) for finding in findings) or "none"


def doubts(report):
    """What the report could not tell, in a line."""
    return "; ".join(f"{doubt['code']} {doubt['reason']}" for doubt in report["doubts"]) or "none"
