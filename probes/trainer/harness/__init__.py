"""What the long checks and the corpus share: `programs` drives the binaries, `runs` has the models and the settings of a run, `store`
keeps what is finished, `pool` runs what is not, `command` is the command line that both have.
"""
