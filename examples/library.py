"""Use the library without a server, in cells for a notebook; it also runs as a script."""

# %% Load a model. With no name it is the bundled one; otherwise a folder, a GGUF file or a hub id.
import galley

llm = galley.LLM()
print(llm)

# %% Chat with it.
[answer] = llm.chat("What is a KV cache?", galley.SamplingParams(temperature=0, max_tokens=48))
print(answer.text)
print(f"{len(answer.token_ids)} tokens in {answer.timing}")

# %% Many prompts share a batch, and each result is the same as if it ran alone.
QUESTIONS = ["What is prefill?", "What is a token?"]
conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
together = llm.chat(conversations, galley.SamplingParams(temperature=0, max_tokens=48))
alone = llm.chat(QUESTIONS[0], galley.SamplingParams(temperature=0, max_tokens=48))
assert together[0].text == alone[0].text
for question, output in zip(QUESTIONS, together, strict=True):
    print(question, output.text)

# %% Log-probabilities of a given text.
[scores] = llm.score(["The capital of France is Paris."])
print([round(score, 2) for score in scores])

# %% An answer in a given form.
params = galley.SamplingParams(temperature=0, grammar=galley.Grammar("regex", "yes|no"))
[choice] = llm.chat("Is int4 smaller than int8?", params)
print(choice.text)

# %% Free the memory; in a script, use ``with galley.LLM(...) as llm``.
llm.close()
