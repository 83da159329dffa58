"""The commands, one file each.

Modules here import nothing heavy until a command runs, so that ``galley --help`` is quick.
"""
