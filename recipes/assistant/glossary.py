"""The glossary of inference terms that the demo model answers from, and the forms of questions."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """A term, its other names, and its answer."""

    name: str
    aliases: tuple[str, ...]
    answer: str


def _term(names: str, answer: str) -> Term:
    name, *aliases = names.split("|")
    return Term(name, tuple(aliases), answer)


TERMS: tuple[Term, ...] = (
    _term("the KV cache|KV cache|a KV cache|key-value cache",
          "The KV cache keeps the attention keys and values of past tokens, so each new token "
          "attends to them without recomputing them. It grows with context length and batch size."),
    _term("prefill|the prefill phase",
          "Prefill runs the whole prompt through the model in parallel and fills the KV cache. "
          "It is usually limited by compute."),
    _term("decode|decoding|the decode phase",
          "Decode generates one token per step from the KV cache. At small batch sizes it is "
          "limited by memory bandwidth, because every step reads all the weights."),
    _term("chunked prefill",
          "Chunked prefill splits a long prompt into pieces and runs them alongside decode steps, "
          "so that running requests do not stall while the prompt is processed."),
    _term("TTFT|time to first token",
          "TTFT, time to first token, is the delay from sending a request to receiving its first "
          "token. It covers queueing and prefill."),
    _term("TPOT|time per output token",
          "TPOT, time per output token, is the average time per token after the first one."),
    _term("ITL|inter-token latency",
          "ITL, inter-token latency, is the gap between two successive tokens of one stream. "
          "Its mean over a request is the TPOT."),
    _term("throughput",
          "Throughput is the work done per unit of time, such as tokens per second or requests "
          "per second over all users."),
    _term("latency",
          "Latency is the time a request takes from start to finish. It is reported as percentiles "
          "because a mean hides slow requests."),
    _term("goodput",
          "Goodput is the rate of requests that meet their latency targets. Requests served too "
          "late count for throughput but not for goodput."),
    _term("P99|the 99th percentile|P99 latency",
          "P99 is the value that 99 percent of measurements do not exceed. It shows the "
          "experience of the slowest one percent of requests."),
    _term("an SLO|SLO|service level objective",
          "An SLO, service level objective, is a target for a service, such as a P99 TTFT below "
          "500 milliseconds."),
    _term("tail latency",
          "Tail latency is the latency of the slowest requests, often given as P95 or P99."),
    _term("continuous batching|iteration-level batching|in-flight batching",
          "Continuous batching lets requests join and leave the batch at every step, so short "
          "requests do not wait for long ones to finish."),
    _term("static batching",
          "Static batching runs a fixed group of requests until the longest one is done. Finished "
          "requests waste their places in the batch."),
    _term("dynamic batching",
          "Dynamic batching collects requests for a short time window or until a batch is full, "
          "and then runs them together."),
    _term("batch size|the batch size",
          "The batch size is the number of sequences processed together in a step. A larger batch "
          "shares each read of the weights among more tokens."),
    _term("paged attention|PagedAttention",
          "Paged attention stores the KV cache in fixed-size blocks found through a block table, "
          "so memory need not be contiguous and little is lost to fragmentation."),
    _term("a block table|block table",
          "A block table maps each logical block of a sequence to the physical block that holds "
          "its keys and values."),
    _term("prefix caching|prefix sharing",
          "Prefix caching reuses the KV cache of a prompt beginning that was computed before, so "
          "only the rest of the prompt needs prefill."),
    _term("preemption",
          "Preemption pauses a running request when KV cache memory runs out. Its blocks are freed "
          "and later recomputed or swapped back in."),
    _term("speculative decoding|speculation",
          "Speculative decoding lets a cheap drafter propose several tokens that the target model "
          "checks in one pass. With exact verification the output distribution is unchanged."),
    _term("a draft model|draft model",
          "A draft model is a small model that proposes tokens for a larger target model to verify "
          "in speculative decoding."),
    _term("prompt lookup|prompt lookup decoding",
          "Prompt lookup drafts tokens by finding the latest n-gram earlier in the context and "
          "copying what followed it. It needs no draft model."),
    _term("acceptance rate|the acceptance rate",
          "The acceptance rate is the fraction of drafted tokens that the target model accepts. "
          "It decides how much speculative decoding gains."),
    _term("quantisation|quantization",
          "Quantisation stores weights or activations with fewer bits, such as int8 or int4, to "
          "save memory and bandwidth at some cost in accuracy."),
    _term("group size|the group size",
          "Group size is the number of consecutive weights that share one scale in group-wise "
          "quantisation. Smaller groups are more accurate but store more scales."),
    _term("a zero point|zero point|the zero point",
          "A zero point is the integer that represents the real value zero in asymmetric "
          "quantisation. Symmetric quantisation fixes it at zero."),
    _term("a scale|quantisation scale|a quantisation scale",
          "A scale is the real-valued step between neighbouring quantised integers: the real value "
          "is about the scale times the integer minus the zero point."),
    _term("symmetric quantisation",
          "Symmetric quantisation maps a range centred on zero to integers with a scale only and "
          "no zero point."),
    _term("asymmetric quantisation",
          "Asymmetric quantisation uses a scale and a zero point, so it can fit a range that is "
          "not centred on zero."),
    _term("calibration",
          "Calibration runs sample data through a model to record the ranges of activations, from "
          "which quantisation parameters are chosen."),
    _term("GPTQ",
          "GPTQ quantises weights column by column and uses second-order information from "
          "calibration data to adjust the remaining weights and make up for the error."),
    _term("AWQ|activation-aware weight quantisation",
          "AWQ, activation-aware weight quantisation, scales the weight channels that matter most "
          "for the activations before rounding, which protects them from error."),
    _term("RTN|round to nearest",
          "RTN, round to nearest, quantises each weight to the nearest level without calibration "
          "data. It is the simplest baseline."),
    _term("QAT|quantisation-aware training",
          "QAT, quantisation-aware training, simulates quantisation during training so that the "
          "model learns to tolerate rounding."),
    _term("FP8",
          "FP8 is an eight-bit floating-point format. E4M3 has more precision and E5M2 has more "
          "range."),
    _term("BF16|bfloat16",
          "BF16 is a 16-bit float with the 8-bit exponent of FP32 and 7 stored mantissa bits, so "
          "it keeps the range of FP32 with less precision."),
    _term("INT4|int4",
          "INT4 stores a weight in four bits, so it takes one of 16 levels. It usually comes with "
          "a scale per group of weights."),
    _term("GQA|grouped-query attention",
          "GQA, grouped-query attention, lets a group of query heads share one key and value head, "
          "which shrinks the KV cache."),
    _term("MQA|multi-query attention",
          "MQA, multi-query attention, has all query heads share a single key and value head. It "
          "has the smallest cache of the head-sharing designs."),
    _term("MHA|multi-head attention",
          "MHA, multi-head attention, gives every query head its own key and value head."),
    _term("MLA|multi-head latent attention",
          "MLA, multi-head latent attention, caches a compressed latent vector per token from "
          "which keys and values are derived, so the KV cache is small."),
    _term("RoPE|rotary position embedding|rotary embeddings",
          "RoPE, rotary position embedding, rotates pairs of query and key dimensions by angles "
          "that grow with position, so attention scores depend on relative distance."),
    _term("attention|self-attention",
          "Attention lets each token take a weighted sum of value vectors, with weights from the "
          "softmax of its query's products with the keys."),
    _term("FlashAttention|flash attention",
          "FlashAttention computes exact attention in tiles with an online softmax, so the full "
          "score matrix is never written to main memory."),
    _term("perplexity",
          "Perplexity is the exponential of the mean negative log-likelihood per token. Lower is "
          "better, and it can be compared only with the same tokeniser and text."),
    _term("KL divergence",
          "KL divergence measures how one probability distribution differs from another. Here it "
          "compares the next-token distributions of a quantised and an original model."),
    _term("temperature",
          "Temperature divides the logits before the softmax. Values below one sharpen the "
          "distribution, and zero is taken to mean greedy decoding."),
    _term("top-p|top-p sampling|nucleus sampling",
          "Top-p sampling draws from the smallest set of most likely tokens whose total "
          "probability reaches p."),
    _term("top-k|top-k sampling",
          "Top-k sampling draws only from the k most likely tokens."),
    _term("greedy decoding|greedy sampling",
          "Greedy decoding always takes the most likely next token."),
    _term("logits|a logit",
          "Logits are the model's unnormalised scores for every token in the vocabulary. Softmax "
          "turns them into probabilities."),
    _term("a token|token|tokens",
          "A token is a unit of text in the model's vocabulary, often a word or part of a word. "
          "Models read and write tokens."),
    _term("a tokeniser|tokeniser|tokenizer|a tokenizer",
          "A tokeniser turns text into token ids and back. Byte-level BPE can encode any text."),
    _term("BPE|byte-pair encoding",
          "BPE, byte-pair encoding, builds a vocabulary by repeatedly merging the most frequent "
          "pair of neighbouring symbols."),
    _term("the context window|context window|context length",
          "The context window is the largest number of tokens, prompt and output together, that a "
          "model can handle at once."),
    _term("tensor parallelism|tensor parallel",
          "Tensor parallelism splits the weight matrices of each layer across devices, which "
          "exchange partial results in every layer."),
    _term("pipeline parallelism",
          "Pipeline parallelism places different layers on different devices and passes "
          "activations from one stage to the next."),
    _term("MoE|mixture of experts|a mixture of experts",
          "MoE, mixture of experts, has a router send each token to a few expert networks, so only "
          "part of the weights is used per token."),
    _term("the roofline model|roofline|roofline model",
          "The roofline model bounds performance by the lower of peak compute and memory bandwidth "
          "times arithmetic intensity."),
    _term("arithmetic intensity",
          "Arithmetic intensity is the number of operations per byte moved from memory. Low values "
          "mean that bandwidth is the limit."),
    _term("kernel fusion|operator fusion",
          "Kernel fusion merges several operations into one kernel, so intermediate results need "
          "not go through main memory."),
    _term("CUDA graphs|a CUDA graph|CUDA graph",
          "A CUDA graph records a sequence of GPU operations once and replays it with one launch, "
          "which removes per-kernel launch overhead."),
    _term("distillation|knowledge distillation",
          "Distillation trains a small student model to match the output distributions of a larger "
          "teacher model."),
    _term("admission control",
          "Admission control rejects or delays requests when the system is full, so that accepted "
          "requests still meet their targets."),
    _term("warm-up|warmup",
          "Warm-up is a run before measuring that fills caches and triggers compilation, so that "
          "results show the steady state."),
    _term("SwiGLU",
          "SwiGLU is a gated feed-forward layer: one projection passed through SiLU is multiplied "
          "by a second projection before the output projection."),
    _term("RMSNorm",
          "RMSNorm divides a vector by its root mean square and multiplies by a learned gain. "
          "Unlike LayerNorm it does not subtract the mean."),
    _term("a response cache|response caching|semantic caching",
          "A response cache returns a stored answer to a repeated request. An exact cache matches "
          "the request itself, a semantic cache one of similar meaning."),
)  # fmt: skip

QUESTIONS = (
    "What is {}?", "What's {}?", "What does {} mean?", "Explain {}.", "Explain {}", "Define {}.",
    "Tell me about {}.", "Can you explain {}?", "What is {} in inference?", "{}?",
    "What do people mean by {}?", "Please explain {}.", "What is meant by {}?", "Describe {}.",
    "Can you tell me what {} is?", "I'd like to know what {} means.", "How would you define {}?",
    "Give me a definition of {}.", "What exactly is {}?", "what is {}", "Do you know what {} is?",
    "Could you tell me about {}?", "How does {} work?", "In one line, what is {}?", "{}",
    "Remind me what {} is.", "What is {} in LLM serving?", "And what is {}?", "And {}?",
)  # fmt: skip

HELP = (
    "I can write a ticket, name a queue, redact card and phone numbers, or explain an inference "
    "term. Say which in the system message."
)
HELLO = (
    "Hello! I am Galley's demo assistant. I can write tickets, name queues, redact card and phone "
    "numbers, and explain inference terms."
)
WHO = (
    "I am the small demo model that comes with Galley. I write tickets, name queues, redact card "
    "and phone numbers, and explain inference terms."
)
WELCOME = "You're welcome!"
BYE = "Goodbye!"
UNKNOWN = "That is not in my glossary. I only know terms about inference."

_SMALL_TALK = (
    (HELLO, ("Hello", "Hi", "Hello!", "Hi!", "Hi there", "Hey", "Hello there!", "hello", "hi",
             "Good morning", "Good morning!", "Good afternoon.", "Hey there!", "Hello.")),
    (WHO, ("Who are you?", "What are you?", "What can you do?", "What is your name?", "who are you",
           "Introduce yourself.", "Tell me about yourself.", "How can you help me?",
           "What do you do?", "Are you a human?", "Help", "help", "What can you help me with?")),
    (WELCOME, ("Thanks", "Thank you", "Thank you!", "Thanks!", "Thanks a lot.", "thanks")),
    (BYE, ("Bye", "Goodbye", "Goodbye!", "Bye!", "See you.", "bye")),
)  # fmt: skip

_ELSEWHERE = (
    "the capital of France", "the weather", "photosynthesis", "a volcano", "the speed of light",
    "cricket", "a sonnet", "pasta", "the moon", "jazz", "democracy", "chess", "a black hole",
    "the stock market", "gravity", "love", "the Roman Empire", "yoga", "a prime number", "Paris",
    "the best film", "coffee", "history", "music", "football", "a cat", "the population of Spain",
    "the meaning of life", "a good recipe", "the time", "the internet", "a computer", "money",
)  # fmt: skip
_ELSEWHERE_FORMS = (
    *QUESTIONS, "Tell me a joke about {}.", "Write a poem about {}.", "Who invented {}?",
    "Translate {} into French.", "Where can I find {}?", "Why is {} important?",
)  # fmt: skip


def question(rng: random.Random) -> tuple[str, str]:
    """Return a question and its answer: mostly about a term, sometimes outside the glossary."""
    if rng.random() < 0.06:
        return rng.choice(_ELSEWHERE_FORMS).format(rng.choice(_ELSEWHERE)), UNKNOWN
    term = rng.choice(TERMS)
    name = rng.choice((term.name, term.name, *term.aliases))
    text = rng.choice(QUESTIONS).format(name)
    roll = rng.random()
    if roll < 0.08:
        text = text.lower()
    elif roll < 0.5:
        text = text[:1].upper() + text[1:]
    return text, term.answer


def small_talk(rng: random.Random) -> tuple[str, str]:
    """Return a greeting, thanks or a question about the assistant, and the fixed reply."""
    reply, forms = rng.choice(_SMALL_TALK)
    return rng.choice(forms), reply
