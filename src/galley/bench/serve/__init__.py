"""Load tests of any server with OpenAI's API, ours or another's, measured from the client's side."""
