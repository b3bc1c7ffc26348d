"""Layouts that no collective takes: one sentence that names the layout and what to do."""

from rank_programs import torch_layouts
from support.jobs.ranks import run_ranks

# Words of the sentence: what the tensor is, and what to do.
WORDS = {
    "csr": ("layout torch.sparse_csr", "tensor.to_dense()", "tensor.to_sparse_coo()"),
    "csc": ("layout torch.sparse_csc", "tensor.to_dense()", "tensor.to_sparse_coo()"),
    "bsr": ("layout torch.sparse_bsr", "tensor.to_dense()", "to_sparse_coo()"),
    "bsc": ("layout torch.sparse_bsc", "tensor.to_dense()", "to_sparse_coo()"),
    "coo": ("layout torch.sparse_coo", "tensor.to_dense()", "sparse_allreduce_async"),
    "mkldnn": ("layout torch._mkldnn", "tensor.to_dense()"),
    "quantized": ("torch.quantized", "tensor.dequantize()"),
    "nested": ("nested", "tensor.unbind()"),
    "jagged": ("layout torch.jagged", "tensor.unbind()"),
    "meta": ("device meta", "to_empty()"),
    "complex": ("torch.Complex", "torch.view_as_real("),
    "conjugate": ("torch.Complex", "resolve_conj()"),
    "negated": ("whose sign is changed", "tensor.resolve_neg()"),
    "zeros without memory": ("no memory", "tensor.clone()"),
}
# fp16 makes a copy of these, which has memory of its own.
WITH_A_COPY = {("negated", "allreduce fp16"), ("zeros without memory", "allreduce fp16")}


def test_every_collective_says_what_to_do() -> None:
    for answers in run_ranks(2, torch_layouts.refusals).values:
        assert {tensor for tensor, _ in answers} == set(WORDS)
        for (tensor, collective), answer in answers.items():
            if (tensor, collective) in WITH_A_COPY:
                assert answer.startswith("result: "), answer
                continue
            assert answer.startswith("ValueError: "), (tensor, collective, answer)
            assert "\n" not in answer, (tensor, collective, answer)
            for word in WORDS[tensor]:
                assert word in answer, (tensor, collective, answer)
            assert ("'w'" in answer) == (collective == "broadcast_parameters"), answer


def test_gradients_are_named() -> None:
    for answers in run_ranks(2, torch_layouts.gradients).values:
        for answer, word in zip(answers, ("resolve_neg",) * 2 + ("clone()",) * 2, strict=True):
            assert "parameter" in answer, answer
            assert "'w'" in answer, answer
            assert word in answer, answer


def test_compressed_sparse_gradients_are_named() -> None:
    for answers in run_ranks(2, torch_layouts.sparse_gradients).values:
        for answer in answers:
            assert answer.startswith("Gradient of parameter 'w': Tensor type"), answer
            assert "tensor.to_dense()" in answer, answer
