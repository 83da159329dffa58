"""Makes the bundled embedding model, which finds queues for calls and glossary entries for questions."""
