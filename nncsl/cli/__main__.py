"""``python -m nncsl.cli``, the command's name before ``python -m nncsl``, still works."""

import runpy

runpy.run_module("nncsl", run_name="__main__")
