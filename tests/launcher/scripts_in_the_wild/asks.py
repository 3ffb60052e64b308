"""Reads a line that is not there."""

input("name? ")
