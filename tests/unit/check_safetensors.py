"""Read the weights that examples/train_moe wrote with the safetensors package: names, shapes, types and values.

usage: check_safetensors.py FILE
"""
import sys

import numpy
from safetensors import safe_open

CONTEXT, EMBED, WIDTH, HIDDEN, EXPERTS, BLOCKS, BYTES = 16, 32, 128, 128, 8, 2, 256


def expected_shapes():
    shapes = {
        "embedding": (BYTES, EMBED),
        "projection": (WIDTH, CONTEXT * EMBED),
        "final_norm": (WIDTH,),
        "head": (BYTES, WIDTH),
        "head_bias": (BYTES,),
    }
    for block in range(BLOCKS):
        shapes[f"block{block}.norm"] = (WIDTH,)
        shapes[f"block{block}.router"] = (EXPERTS, WIDTH)
        shapes[f"block{block}.fc1"] = (EXPERTS, 2 * HIDDEN, WIDTH)
        shapes[f"block{block}.fc2"] = (EXPERTS, WIDTH, HIDDEN)
    return shapes


def problems(path):
    """One line for each thing that is wrong."""
    expected = expected_shapes()
    with safe_open(path, framework="numpy") as weights:
        if set(weights.keys()) != set(expected):
            yield f"names {sorted(weights.keys())}, expected {sorted(expected)}"
            return
        metadata = weights.metadata() or {}
        if metadata != {"context": str(CONTEXT), "experts": str(EXPERTS), "choices": "2"}:
            yield f"metadata {metadata}"
        for name, shape in expected.items():
            tensor = weights.get_tensor(name)
            if tensor.shape != shape or tensor.dtype != numpy.float32:
                yield f"{name}: {tensor.dtype} {tensor.shape}, expected float32 {shape}"
            elif not numpy.isfinite(tensor).all():
                yield f"{name}: not all values are finite"
            elif numpy.unique(tensor).size < 2:
                yield f"{name}: all values are the same"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = list(problems(sys.argv[1]))
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


main()
