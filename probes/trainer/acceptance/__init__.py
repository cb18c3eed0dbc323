"""The long checks: the real trainer and the real ampdoctor, over every combination and many seeds.

`items` lists what is checked; a file each says how (`healthy`, `faults`, `masters`, `identity`, `killed`, `accuracy`); `__main__` is the command; `harness` beside it drives the binaries and keeps what is finished.
"""
