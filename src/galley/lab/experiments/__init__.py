"""The experiments, one a file; :mod:`galley.lab.registry` lists them in the order of the page."""
