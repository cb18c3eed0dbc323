"""The long checks: the real trainer and the real ampdoctor, over every combination and many seeds.

`items` lists what is checked; a file each says how (`healthy`, `faults`, `masters`, `identity`, `killed`, `accuracy`); `programs` drives the binaries, `store` keeps what is finished, `__main__` is the command.
"""
