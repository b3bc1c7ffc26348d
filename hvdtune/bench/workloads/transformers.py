"""Parameter shapes of transformers, as the Hugging Face library builds them.

Every generator yields (name, shape) in the order of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

from hvdtune.bench.workloads.convnets import Parameter, linear

WIDTH = 768
LAYERS = 12


def _norm(name: str) -> Iterator[Parameter]:
    yield f"{name}.weight", (WIDTH,)
    yield f"{name}.bias", (WIDTH,)


def bert_base() -> Iterator[Parameter]:
    """BERT-base uncased with its pooler (Devlin et al. 2018): 109 482 240 in 199 tensors."""
    yield "embeddings.word_embeddings.weight", (30522, WIDTH)
    yield "embeddings.position_embeddings.weight", (512, WIDTH)
    yield "embeddings.token_type_embeddings.weight", (2, WIDTH)
    yield from _norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from linear(f"{at}.attention.self.{part}", WIDTH, WIDTH)
        yield from linear(f"{at}.attention.output.dense", WIDTH, WIDTH)
        yield from _norm(f"{at}.attention.output.LayerNorm")
        yield from linear(f"{at}.intermediate.dense", WIDTH, 4 * WIDTH)
        yield from linear(f"{at}.output.dense", 4 * WIDTH, WIDTH)
        yield from _norm(f"{at}.output.LayerNorm")
    yield from linear("pooler.dense", WIDTH, WIDTH)


def gpt2_small() -> Iterator[Parameter]:
    """GPT-2 small (Radford et al. 2019), head tied to wte: 124 439 808 in 148 tensors."""
    yield "wte.weight", (50257, WIDTH)
    yield "wpe.weight", (1024, WIDTH)
    for layer in range(LAYERS):
        at = f"h.{layer}"
        yield from _norm(f"{at}.ln_1")
        yield from _conv1d(f"{at}.attn.c_attn", WIDTH, 3 * WIDTH)
        yield from _conv1d(f"{at}.attn.c_proj", WIDTH, WIDTH)
        yield from _norm(f"{at}.ln_2")
        yield from _conv1d(f"{at}.mlp.c_fc", WIDTH, 4 * WIDTH)
        yield from _conv1d(f"{at}.mlp.c_proj", 4 * WIDTH, WIDTH)
    yield from _norm("ln_f")


def _conv1d(name: str, inputs: int, outputs: int) -> Iterator[Parameter]:
    """GPT-2's fully connected layer, weight as (inputs, outputs)."""
    yield f"{name}.weight", (inputs, outputs)
    yield f"{name}.bias", (outputs,)
