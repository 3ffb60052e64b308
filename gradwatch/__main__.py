"""`python -m gradwatch`: the command line."""

from gradwatch.cli import main

main(prog_name="gradwatch")
