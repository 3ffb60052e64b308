"""Where the weights of queries and keys stand in a model's attention, row by row.

Legend: H heads of queries, G of keys (fewer than H where they are shared), D features of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from gradwatch.errors import WatchError

SPLIT = (  # what the layers of q and k are called beside each other
    ("q_proj", "k_proj"), ("query", "key"), ("wq", "wk"), ("to_q", "to_k"), ("q_lin", "k_lin"),
    ("linear_q", "linear_k"), ("q", "k"),
)  # fmt: skip
FUSED = ("c_attn", "qkv_proj")  # one layer whose rows are all of q, all of k, all of v
BY_HEAD = "GPTNeoX"  # whose query_key_value has q, k and v of the first head, of the second ...
HEADS = ("num_heads", "n_head", "n_heads", "num_attention_heads", "heads", "nhead")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
KNOWN = "nn.MultiheadAttention, q_proj and k_proj, query and key, wq and wk, to_q and to_k, c_attn, qkv_proj"


class Run(NamedTuple):
    """Rows that follow each other: to which head of keys they belong, and to which power its factor multiplies them."""

    size: int
    head: int = 0
    power: float = 0.0  # of neither queries nor keys


class Rows(NamedTuple):
    """A weight or a bias, the dimension along which its rows lie, and what they are."""

    param: Tensor
    dim: int
    runs: list[Run]


class Heads(NamedTuple):
    """An attention with `queries` heads, each `queries / keys` of which share one of the keys'."""

    module: nn.Module
    queries: int
    keys: int
    weights: tuple[Rows, ...]


def attention_heads(model: nn.Module) -> dict[str, Heads]:
    """The attention of a model by its module's name.

    Raises:
        WatchError: there is none whose rows are known, or one normalises queries and keys.
    """
    found = {name: heads for name, module in model.named_modules() if (heads := _heads(name, module)) is not None}
    if not found:
        raise WatchError(
            f"QKClip: {type(model).__name__} has no attention whose rows of queries and keys are known; wanted "
            f"one with {KNOWN}, and a number of heads such as num_heads"
        )
    return found


def _heads(name: str, module: nn.Module) -> Heads | None:
    queries = _number(module, HEADS)
    layers = None if not queries else _of_torch(module) or _latent(module) or _split(module) or _fused(module)
    if not queries or layers is None:
        return None
    norms = [n for n in ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "norm_q", "norm_k", "query_norm") if
             not isinstance(getattr(module, n, None), nn.Identity | None)]  # fmt: skip
    if norms:
        raise WatchError(
            f"QKClip: {name} normalises its queries and keys ({norms[0]}), so that its logits do not depend on the "
            "size of their weights: leave it out"
        )
    keys = max(run.head for runs in layers.values() for run in runs) + 1
    weights = []
    for layer, runs in layers.items():
        for param, dim in _params(module, layer):
            wanted = sum(run.size for run in runs)
            if param.shape[dim] != wanted:
                raise WatchError(
                    f"QKClip: {name}.{layer} has {param.shape[dim]} rows, wanted {wanted} for {queries} heads: it is "
                    "not known which of them are queries and keys"
                )
            weights.append(Rows(param, dim, runs))
    return Heads(module, queries, keys, tuple(weights))


# ------------------------------------------------------------------------------ the rows of each layer, None for others


def _of_torch(module: nn.Module) -> dict[str, list[Run]] | None:
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if module.bias_k is not None:
        raise WatchError("QKClip: nn.MultiheadAttention(add_bias_kv=True) has keys that no weight makes: leave it out")
    wide, heads = module.embed_dim, module.num_heads
    own = _queries(heads, heads, wide // heads)
    rest = {"in_proj_bias": [*own, *own, Run(wide)]} if module.in_proj_bias is not None else {}
    if module._qkv_same_embed_dim:
        return {"in_proj_weight": [*own, *own, Run(wide)], **rest}
    return {"q_proj_weight": own, "k_proj_weight": own, **rest}


def _latent(module: nn.Module) -> dict[str, list[Run]] | None:
    """DeepSeek's: of each head one part turns with the position, and the key of that part is shared by all heads.

    A head's logits are the sum of both parts' products, so that its rotary queries take the whole factor.
    """
    plain, turning, values = (_number(module, (n,)) for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries = next((n for n in ("q_b_proj", "q_proj") if _params(module, n)), None)
    if not plain or not values or queries is None or not _params(module, "kv_b_proj"):
        return None
    heads = range(_number(module, HEADS))
    return {
        queries: [run for h in heads for run in (Run(plain, h, 0.5), Run(turning, h, 1.0))],
        "kv_b_proj": [run for h in heads for run in (Run(plain, h, 0.5), Run(values))],
    }


def _split(module: nn.Module) -> dict[str, list[Run]] | None:
    for q, k in SPLIT:
        of_q, of_k, heads = _params(module, q), _params(module, k), _number(module, HEADS)
        if of_q and of_k:
            width = _size(of_q) // heads
            keys = _size(of_k) // width if width else 0
            if keys and heads % keys == 0:
                return {q: _queries(heads, keys, width), k: _queries(keys, keys, width)}
    return None


def _fused(module: nn.Module) -> dict[str, list[Run]] | None:
    heads = _number(module, HEADS)
    layer = next((n for n in FUSED if _params(module, n)), None)
    if layer is not None:
        keys = _number(module, KEY_HEADS) or heads
        width, left = divmod(_size(_params(module, layer)), heads + 2 * keys)
        if left or heads % keys:
            return None
        return {layer: [*_queries(heads, keys, width), *_queries(keys, keys, width), Run(keys * width)]}
    if type(module).__name__.startswith(BY_HEAD) and _params(module, "query_key_value"):
        width = _size(_params(module, "query_key_value")) // (3 * heads)
        return {"query_key_value": [run for h in range(heads) for run in (Run(2 * width, h, 0.5), Run(width))]}
    return None


def _queries(heads: int, keys: int, width: int) -> list[Run]:
    return [Run(width, h * keys // heads, 0.5) for h in range(heads)]


def _params(module: nn.Module, name: str) -> list[tuple[Tensor, int]]:
    """The weight and bias of a layer in a module, or the parameter of that name, and where their rows lie."""
    layer = getattr(module, name, None)
    if isinstance(layer, nn.Parameter):
        return [(layer, 0)]
    own = dict(layer.named_parameters(recurse=False)) if isinstance(layer, nn.Module) else {}
    dim = 1 if type(layer).__name__ == "Conv1D" else 0  # Hugging Face's GPT-2: [in, out]
    return [(own[n], 0 if n == "bias" else dim) for n in ("weight", "bias") if n in own] if "weight" in own else []


def _size(params: list[tuple[Tensor, int]]) -> int:
    param, dim = params[0]
    return param.shape[dim]


def _number(module: nn.Module, names: Sequence[str]) -> int:
    """The first of these attributes that is a number, of the module or of its configuration; 0 where none is."""
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if type(value) is int and value > 0:
                return value
    return 0
