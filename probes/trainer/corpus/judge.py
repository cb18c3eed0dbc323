"""What was found, against what was planted. Functions of a report and a trial; nothing runs here."""

from harness.runs import brief

NONE, UNSURE = "none", "unsure"


def is_right(trial):
    """Whether a finding is the one that has to be made: its code at its layer, or a cause that the case knows with it among what follows."""
    case, named = trial.case, trial.named()

    def right(finding):
        follows = finding["consequences"] if finding["code"] in case.beside else ()
        return any(one["code"] in case.codes and named in (None, one["layer"]) for one in (finding, *follows))

    return right


def judged(trial, report, stood):
    """The outcome of a run: what was named first, whether it is right, how many steps after the onset it stood, and what else was said.

    What follows from a finding counts as that finding.
    """
    roots = [finding for finding in report["findings"] if counts(finding, trial.case.codes)]
    right = [finding for finding in roots if is_right(trial)(finding)]
    steps = None if stood is None else stood - trial.onset
    early = [finding for finding in roots if finding["onset_step"] < trial.onset]
    faults = _faults(trial, roots, right, steps, early)
    return {
        "case": trial.case.name,
        "model": trial.model,
        "precision": trial.precision,
        "optimizer": trial.optimizer,
        "seed": trial.seed,
        "expected": list(trial.case.codes),
        "layer": trial.named(),
        "onset": trial.onset,
        "found": _named(report, roots, right, trial.case),
        "found_layer": roots[0]["layer"] if roots else None,
        "right": bool(right),
        "steps": steps,
        "within": trial.case.within,
        "besides": [brief(finding) for finding in roots if finding not in right],
        "unsure": sorted({doubt["code"] for doubt in report["doubts"]}),
        "set": remedy_set(right[0]) if right else {},
        "evidence": right[0]["evidence"] if right else {},
        "faults": faults,
        "said": "; ".join(faults) or f"{right[0]['code']} after {steps} steps",
    }


def counts(finding, codes):
    """Whether a finding is a diagnosis: a remark of the level info is one only where it is asked for."""
    return finding["severity"] != "info" or finding["code"] in codes


def remedy_set(finding):
    """The settings that a finding's remedy names."""
    remedy = finding["remedy"]
    return remedy.get("set") or {} if isinstance(remedy, dict) else {}


def _named(report, roots, right, case):
    """The code named first; the right one where only what may stand beside it comes before, or has it among what follows."""
    if right and all(finding["code"] in case.beside for finding in roots[: roots.index(right[0])]):
        return right[0]["code"] if right[0]["code"] in case.codes else case.codes[0]
    if roots:
        return roots[0]["code"]
    return UNSURE if any(doubt["code"] in case.codes for doubt in report["doubts"]) else NONE


def _faults(trial, roots, right, steps, early):
    said = "; ".join(brief(finding) for finding in roots) or "nothing"
    wanted = f"{' or '.join(trial.case.codes)} at {trial.named() or 'the run' if trial.named() is not None else 'any layer'}"
    faults = []
    if not right:
        faults.append(f"no {wanted}, but {said}")
    elif roots[0] not in right and roots[0]["code"] not in trial.case.beside:
        faults.append(f"{brief(roots[0])} comes before {wanted}")
    if early:
        faults.append(f"before the fault: {'; '.join(brief(finding) for finding in early)}")
    if right and trial.case.within is not None and (steps is None or steps > trial.case.within):
        faults.append(f"{wanted} stood only after {steps} steps")
    return faults
