"""The long checks: the real trainer and the real ampdoctor, over every combination and many seeds.

`items` says what is checked, `programs` drives the binaries, `store` keeps what is finished, `__main__` is the command.
"""
