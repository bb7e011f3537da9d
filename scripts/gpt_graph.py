"""A GPT-2 as an ONNX graph with a key-value cache, written node by node as TorchScript lays out eager attention.

Weight matrices and embedding tables are stored in float16 and cast to float32 in the graph; biases and layer norms
stay float32; everything is computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from bert_graph import Graph
from gpt_in_numpy import Array
from onnx import TensorProto, helper, numpy_helper

OPSET, IR = 17, 8


def is_half(name: str) -> bool:
    """Whether `build_gpt2` stores this tensor in float16: matrices and tables, not biases and layer norms."""
    return name.endswith(".weight") and ".ln_" not in name


def build_gpt2(tensors: dict[str, Array], config: dict[str, Any]) -> onnx.ModelProto:
    """A GPT2LMHeadModel with tied embeddings: ids, mask, positions and a past -> logits and the longer past.

    Inputs: input_ids [B,Q], attention_mask [B,K] (1 for a real token, K = past + Q), position_ids [B,Q], all int64,
    and past_key_values.{i}.key|value [B,H,past,D]; past may be 0. Outputs: logits [B,Q,vocab] and
    present.{i}.key|value [B,H,K,D].

    Args:
        tensors: float32 weights under Hugging Face's names; a Conv1D's weight is [in, out].
        config: The model's config.json.

    Returns:
        The model, checked by onnx. Per layer: MatMul(query, key^T) -> Div sqrt(D) -> Add mask -> Softmax -> MatMul.
    """
    graph = Graph()
    add, constant = graph.add, graph.constant
    heads, size = config["n_head"], config["n_embd"] // config["n_head"]

    def scalar(name: str, number: float, dtype: type = np.float32) -> str:
        # Not `constant`: numpy's ascontiguousarray makes a scalar a vector of one, which Range must not get.
        graph.initializers.append(numpy_helper.from_array(np.array(number, dtype), name))
        return name

    def linear(x: str, at: str, name: str) -> str:
        weight = graph.half(f"{name}.weight", tensors[f"{name}.weight"])
        bias = constant(f"{name}.bias", tensors[f"{name}.bias"])
        return add("Add", f"{at}/Add", add("MatMul", f"{at}/MatMul", x, weight), bias)

    def norm(x: str, at: str, name: str) -> str:
        weights = [constant(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias")]
        node = f"{at}/LayerNormalization"
        return add("LayerNormalization", node, x, *weights, axis=-1, epsilon=config["layer_norm_epsilon"])

    def dim(x: str, axis: int, at: str) -> str:
        shape = add("Shape", f"{at}/Shape", x)
        return add("Gather", f"{at}/Gather", shape, scalar(f"{at}/axis", axis, np.int64))

    tables = {}
    for table, indices in (("wte", "input_ids"), ("wpe", "position_ids")):
        name, at = f"transformer.{table}.weight", f"/transformer/{table}"
        rows = constant(name, tensors[name].astype(np.float16))
        tables[table] = add("Cast", f"{at}/Cast", add("Gather", f"{at}/Gather", rows, indices), to=TensorProto.FLOAT)
    x = add("Add", "/transformer/Add", tables["wte"], tables["wpe"])

    # The causal mask [Q,K]: query i of this call stands at key position past + i, and sees no key after that.
    zero, one = (scalar(f"range_{n}", n, np.int64) for n in (0, 1))
    past = dim("past_key_values.0.key", 2, "/past")
    total = add("Add", "/total/Add", past, dim("input_ids", 1, "/length"))
    query_at = add("Range", "/queries/Range", past, total, one)
    query_at = add("Unsqueeze", "/queries/Unsqueeze", query_at, constant("query_axis", np.array([1], np.int64)))
    causal = add("LessOrEqual", "/causal/LessOrEqual", add("Range", "/keys/Range", zero, total, one), query_at)
    # The future is at -inf, padding at the lowest float32: the row of a padded query, which sees padding alone, has
    # something finite to look at, and still gives nothing to the future.
    never, lowest, seen = (
        scalar("never", -math.inf),
        scalar("lowest", float(np.finfo(np.float32).min)),
        scalar("seen", 0),
    )
    causal = add("Where", "/causal/Where", causal, seen, never)
    # Padding [B,1,1,K].
    mask = add("Unsqueeze", "/Unsqueeze", "attention_mask", constant("mask_axes", np.array([1, 2], np.int64)))
    mask = add("Cast", "/Cast", mask, to=TensorProto.FLOAT)
    mask = add("Mul", "/Mul", add("Sub", "/Sub", scalar("mask_one", 1), mask), lowest)
    mask = add("Add", "/mask/Add", causal, mask)

    split = constant("split_heads", np.array([0, 0, heads, size], np.int64))
    merge = constant("merge_heads", np.array([0, 0, heads * size], np.int64))
    root = scalar("sqrt_head_size", math.sqrt(size))
    thirds = constant("split_sizes", np.full(3, heads * size, np.int64))
    numbers = {"cube": 3, "cubic": 0.044715, "root": math.sqrt(2 / math.pi), "one": 1, "half": 0.5}
    gelu = {name: scalar(f"gelu_{name}", number) for name, number in numbers.items()}
    for layer in range(config["n_layer"]):
        scope, name = f"/transformer/h.{layer}", f"transformer.h.{layer}"
        at = f"{scope}/attn"
        packed = linear(norm(x, f"{scope}/ln_1", f"{name}.ln_1"), f"{at}/c_attn", f"{name}.attn.c_attn")
        parts = [f"{at}/Split_output_{i}" for i in range(3)]
        graph.nodes.append(helper.make_node("Split", [packed, thirds], parts, name=f"{at}/Split", axis=-1))
        for i, part in enumerate(("query", "key", "value")):
            suffix = f"_{i}" if i else ""
            parts[i] = add("Reshape", f"{at}/Reshape{suffix}", parts[i], split)
            parts[i] = add("Transpose", f"{at}/Transpose{suffix}", parts[i], perm=[0, 2, 1, 3])
            if part != "query":
                cached, longer = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
                parts[i] = add("Concat", f"{at}/Concat{suffix}", cached, parts[i], output=longer, axis=2)
        query, key, value = parts
        key = add("Transpose", f"{at}/Transpose_3", key, perm=[0, 1, 3, 2])
        scores = add("MatMul", f"{at}/MatMul", query, key)
        masked = add("Add", f"{at}/Add", add("Div", f"{at}/Div", scores, root), mask)
        weights = add("Softmax", f"{at}/Softmax", masked, axis=-1)
        context = add("MatMul", f"{at}/MatMul_1", weights, value)
        context = add("Transpose", f"{at}/Transpose_4", context, perm=[0, 2, 1, 3])
        context = add("Reshape", f"{at}/Reshape_3", context, merge)
        x = add("Add", f"{scope}/Add", x, linear(context, f"{at}/c_proj", f"{name}.attn.c_proj"))

        at = f"{scope}/mlp"
        inner = linear(norm(x, f"{scope}/ln_2", f"{name}.ln_2"), f"{at}/c_fc", f"{name}.mlp.c_fc")
        act = f"{at}/act"
        cubed = add("Mul", f"{act}/Mul", add("Pow", f"{act}/Pow", inner, gelu["cube"]), gelu["cubic"])
        curve = add("Mul", f"{act}/Mul_1", add("Add", f"{act}/Add", inner, cubed), gelu["root"])
        curve = add("Add", f"{act}/Add_1", add("Tanh", f"{act}/Tanh", curve), gelu["one"])
        inner = add("Mul", f"{act}/Mul_3", add("Mul", f"{act}/Mul_2", inner, gelu["half"]), curve)
        x = add("Add", f"{scope}/Add_1", x, linear(inner, f"{at}/c_proj", f"{name}.mlp.c_proj"))

    x = norm(x, "/transformer/ln_f", "transformer.ln_f")
    words = add("Cast", "/lm_head/Cast", "transformer.wte.weight", to=TensorProto.FLOAT)
    add("MatMul", "/lm_head/MatMul", x, add("Transpose", "/lm_head/Transpose", words, perm=[1, 0]), output="logits")

    def value_info(name: str, kind: int, *dims: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["batch_size", *dims])

    def cache(name: str, length: str) -> list[onnx.ValueInfoProto]:
        layers = range(config["n_layer"])
        names = [f"{name}.{i}.{part}" for i in layers for part in ("key", "value")]
        return [value_info(n, TensorProto.FLOAT, heads, length, size) for n in names]

    inputs = [
        value_info("input_ids", TensorProto.INT64, "sequence_length"),
        value_info("attention_mask", TensorProto.INT64, "total_sequence_length"),
        value_info("position_ids", TensorProto.INT64, "sequence_length"),
        *cache("past_key_values", "past_sequence_length"),
    ]
    logits = value_info("logits", TensorProto.FLOAT, "sequence_length", config["vocab_size"])
    outputs = [logits, *cache("present", "total_sequence_length")]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "gpt2", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="attnx scripts/train_tiny_gpt.py",
    )
    onnx.checker.check_model(model, full_check=True)
    return model
