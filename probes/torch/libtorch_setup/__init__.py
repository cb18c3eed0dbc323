"""Puts the LibTorch that tch wants into a folder of the checkout.

`layout` knows what a LibTorch consists of and whether one is whole, `sources` where one can be had, `wheels` how the
wheels of PyPI become one, `progress` what people see meanwhile. `fetch_libtorch.py` beside this package is the command.
"""

VERSION = "2.13.0"
