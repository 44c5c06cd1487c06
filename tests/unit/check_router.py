"""Routers of models against numpy, each by its own procedure: check_router.py LIBTEGROUP. Used by test_router_oracle.sh.

Every function below does in FP64 what the model's own code does, in its own order (top-k of logits and then softmax, masks over groups,
gathers), and knows nothing of tegroup's scheme, which stands beside it in MODELS, as docs/router.md prints it.
"""
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
sys.dont_write_bytecode = True
import tegroup_ctypes as tg  # noqa: E402


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def top(x, k):
    """torch.topk, sorted; of equals the lower."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k]


def gather(x, at):
    return np.take_along_axis(x, at, -1)


def softmax_top_k(x, k, bias, normalised):
    p = softmax(x)
    at = top(p, k)
    w = gather(p, at)
    return at, w / w.sum(-1, keepdims=True) if normalised else w


def mixtral(x, k, bias, ids):
    return softmax_top_k(x, k, bias, True)


def gpt_oss(x, k, bias, ids):  # top-k of logits first
    at = top(x, k)
    return at, softmax(gather(x, at))


def llama4(x, k, bias, ids):  # the others are -infinity before the sigmoid
    at = top(x, k)
    masked = np.full_like(x, -np.inf)
    np.put_along_axis(masked, at, gather(x, at), -1)
    return at, gather(sigmoid(masked), at)


def deepseek_v2(x, k, bias, ids):  # group_limited_greedy: 8 groups, 3 of them, by their largest
    p = softmax(x)
    groups = p.reshape(len(x), 8, -1)
    mask = np.zeros((len(x), 8))
    np.put_along_axis(mask, top(groups.max(-1), 3), 1, -1)
    kept = np.where(mask[:, :, None] > 0, groups, 0.0).reshape(x.shape)
    at = top(kept, k)
    return at, gather(kept, at) * 16.0


def noaux_tc(scores, k, bias, factor, n_group, topk_group):
    choice = scores + bias
    if n_group > 1:
        groups = choice.reshape(len(scores), n_group, -1)
        two = np.sort(groups, -1)[:, :, -2:].sum(-1)
        mask = np.zeros((len(scores), n_group))
        np.put_along_axis(mask, top(two, topk_group), 1, -1)
        choice = np.where(np.repeat(mask, groups.shape[-1], -1) > 0, choice, -np.inf)
    at = top(choice, k)
    w = gather(scores, at)
    return at, w / (w.sum(-1, keepdims=True) + 1e-20) * factor


def deepseek_v3(x, k, bias, ids):
    return noaux_tc(sigmoid(x), k, bias, 2.5, 8, 4)


def kimi_k2(x, k, bias, ids):
    return noaux_tc(sigmoid(x), k, bias, 2.827, 1, 1)


def kimi_k3(x, k, bias, ids):
    return noaux_tc(sigmoid(x), k, bias, 1.0, 1, 1)


def glm(x, k, bias, ids):
    return noaux_tc(sigmoid(x), k, bias, 2.5, 1, 1)


def deepseek_v4(x, k, bias, ids):
    return noaux_tc(np.sqrt(np.log1p(np.exp(x))), k, bias, 1.5, 1, 1)


def deepseek_v4_hash(x, k, bias, ids):
    w = gather(np.sqrt(np.log1p(np.exp(x))), ids)
    return ids, w / (w.sum(-1, keepdims=True) + 1e-20) * 1.5


# name in docs/router.md: what the model does; experts, k; fields of desc and of desc.scheme; has it a bias, are ids given
MODELS = {
    "Mixtral": (mixtral, 8, 2, {"normalize": 1}, {}, 0, 0),
    "Qwen3": (mixtral, 128, 8, {"normalize": 1}, {}, 0, 0),
    "Qwen3-Next": (mixtral, 512, 10, {"normalize": 1}, {}, 0, 0),
    "gpt-oss": (gpt_oss, 128, 4, {"normalize": 1}, {}, 0, 0),
    "Llama-4": (llama4, 128, 1, {}, {"score": "SIGMOID"}, 0, 0),
    "DeepSeek-V2": (deepseek_v2, 160, 6, {}, {"n_group": 8, "topk_group": 3, "group_score": "MAX", "route_factor": 16.0}, 0, 0),
    "DeepSeek-V3": (deepseek_v3, 256, 8, {"normalize": 1}, {"score": "SIGMOID", "n_group": 8, "topk_group": 4, "normalize_epsilon": 1e-20, "route_factor": 2.5}, 1, 0),
    "DeepSeek-V4": (deepseek_v4, 256, 6, {"normalize": 1}, {"score": "SQRT_SOFTPLUS", "normalize_epsilon": 1e-20, "route_factor": 1.5}, 1, 0),
    "DeepSeek-V4, hash layers": (deepseek_v4_hash, 256, 6, {"normalize": 1}, {"score": "SQRT_SOFTPLUS", "normalize_epsilon": 1e-20, "route_factor": 1.5}, 0, 1),
    "GLM-4.5": (glm, 160, 8, {"normalize": 1}, {"score": "SIGMOID", "normalize_epsilon": 1e-20, "route_factor": 2.5}, 1, 0),
    "GLM-5.3-Flash": (glm, 288, 8, {"normalize": 1}, {"score": "SIGMOID", "normalize_epsilon": 1e-20, "route_factor": 2.5}, 1, 0),
    "Kimi-K2": (kimi_k2, 384, 8, {"normalize": 1}, {"score": "SIGMOID", "normalize_epsilon": 1e-20, "route_factor": 2.827}, 1, 0),
    "Kimi-K3": (kimi_k3, 896, 16, {"normalize": 1}, {"score": "SIGMOID", "normalize_epsilon": 1e-20, "route_factor": 1.0}, 1, 0),
}
ENUMS = {"score": "TEGROUP_SCORE_", "group_score": "TEGROUP_GROUP_SCORE_"}


def route(library, x, k, fields, scheme, bias, ids, sequence=0):
    """indices, weights, balance loss, z-loss."""
    tokens, experts = x.shape
    sequences = tokens // sequence if sequence else 1
    desc = tg.tegroup_router_desc(space=tg.TEGROUP_SPACE_HOST, experts=experts, k=k, balance_coefficient=0.5, **fields)

    def matrix(array):
        kind = {"float64": tg.TEGROUP_DTYPE_F64, "int64": tg.TEGROUP_DTYPE_I64}[array.dtype.name]
        return library.tegroup_matrix_of(array.ctypes.data, array.shape[0], array.shape[1], kind)

    p, w, at, slopes = np.full((tokens, experts), np.nan), np.full((tokens, k), np.nan), np.full((tokens, k), -7), np.full((sequences, experts + 1), np.nan)
    losses = np.full(2, np.nan)
    desc.logits, desc.probabilities, desc.weights, desc.indices, desc.loss_gradients = map(matrix, (x, p, w, at, slopes))
    desc.balance_loss, desc.z_loss = losses.ctypes.data, losses.ctypes.data + 8
    for name, value in scheme.items():
        setattr(desc.scheme, name, getattr(tg, ENUMS[name] + value) if name in ENUMS else value)
    if bias is not None:
        desc.scheme.bias = matrix(bias)
    if ids is not None:
        desc.scheme.given_indices = matrix(ids)
    desc.scheme.z_coefficient, desc.scheme.sequence_tokens = 0.25, sequence
    library.tegroup_router(desc, None)
    return at, w, losses


def losses_of(x, at, k, scores, sequence):
    """DeepSeek-V3's equations 17 to 20 by sequence, and ST-MoE's equation 5."""
    experts, balance = x.shape[1], []
    for begin in range(0, len(x), sequence):
        s, chosen = scores[begin:begin + sequence], at[begin:begin + sequence]
        f = np.array([(chosen == i).sum() for i in range(experts)]) * experts / (k * len(s))
        balance.append((f * (s / s.sum(-1, keepdims=True)).mean(0)).sum())
    return 0.5 * np.mean(balance), 0.25 * np.mean(np.log(np.exp(x).sum(-1)) ** 2)


def main(path):
    library, random = tg.load(path), np.random.default_rng(4025)
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "..", "docs", "router.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|", file.read(), re.M)
    table = {name.strip(): (size, what) for name, size, what in rows}
    for name, (model, experts, k, fields, scheme, biased, given) in MODELS.items():
        x = random.normal(0, 1.5, (48, experts))
        bias = random.normal(0, 0.1, (1, experts)) if biased else None
        ids = np.stack([random.choice(experts, k, replace=False) for _ in x]) if given else None
        want_at, want = model(x, k, bias, ids)
        at, w, losses = route(library, x, k, fields, scheme, bias, ids, 12)
        assert (at == want_at).all(), name
        assert np.allclose(w, want, rtol=1e-12, atol=0), name
        score = scheme.get("score", "SOFTMAX")
        scores = {"SOFTMAX": softmax, "SIGMOID": sigmoid, "SQRT_SOFTPLUS": lambda x: np.sqrt(np.log1p(np.exp(x)))}[score](x)
        assert np.allclose(losses, losses_of(x, want_at, k, scores, 12), rtol=1e-11, atol=0), (name, losses)
        size, what = table[name]  # the documentation says what was tried here
        assert size.strip() == f"{experts}, {k}", (name, size)
        said = {m[0]: m[1] for m in re.findall(r"`(\w+)` ([\w.-]+)", what)}
        meant = {**{n: str(v) for n, v in fields.items()}, **{n: f"{v:g}" if isinstance(v, float) else str(v) for n, v in scheme.items()}}
        if biased:
            meant["bias"] = "yes"
        if given:
            meant["given_indices"] = "yes"
        assert said == meant, (name, said, meant)
    print(len(MODELS), "models")


main(sys.argv[1])
