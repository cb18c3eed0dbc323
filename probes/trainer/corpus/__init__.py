"""The corpus: runs with known faults and runs that are well, on which the doctor is judged as a doctor is.

`cases` is the table of faults, a row each, and `healthy` that of the runs that must stay silent; `trials` varies the rows over models,
layers, steps, optimizers and seeds; `frames` cuts a recording after a step, `detection` finds with that the step at which a finding first
stood, `judge` compares what was found with what was planted; `cures` applies the printed remedy and runs again; `page` writes
docs/diagnosis.md, `fixtures` the small recordings under fixtures/corpus, `__main__` is the command.
"""
