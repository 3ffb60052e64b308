"""What a script of ranks has to end with."""

# ends gloo's threads: one that lets go of a tensor while Python ends aborts it (pytorch#179291)
AT_THE_END = "\nimport gc\n\ngc.collect()\n"
