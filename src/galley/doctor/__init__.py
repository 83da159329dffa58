"""Problems of a machine for serving models, their costs and remedies; one file per family of checks."""
