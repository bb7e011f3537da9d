"""A BERT as an ONNX graph, written node by node as optimum and TorchScript lay it out with eager attention.

Weight matrices and embedding tables are stored in float16 and cast to float32 in the graph (tables: the rows are
gathered first, then cast); biases and layer norms stay float32; everything is computed in float32.

Measured with onnxruntime 1.31 on two CPU cores, 16 tokens, session and first run together: 93 ms as it is, 69 ms with
the ConstantFolding optimizer off, since a single run then casts each weight once, where it is used; with the weights
mapped from this file by a second graph 66 and 40 ms. Float32 matrices instead, in a file half as large again: 95 ms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from bert_in_numpy import Array
from onnx import TensorProto, helper, numpy_helper

OPSET, IR = 17, 8


def is_half(name: str) -> bool:
    """Whether `build_bert` stores this tensor in float16: matrices and tables, not biases and layer norms."""
    return name.endswith(".weight") and "LayerNorm" not in name


class Graph:
    """Nodes and initializers, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def constant(self, name: str, array: Array) -> str:
        """Adds an initializer; returns its name."""
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, op: str, name: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node with one output, named after it as TorchScript does; returns the output's name."""
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def half(self, name: str, array: Array) -> str:
        """Adds a weight stored as float16, and the Cast that makes it float32 again; returns the Cast's output."""
        return self.add("Cast", f"/{name}/Cast", self.constant(name, array.astype(np.float16)), to=TensorProto.FLOAT)


def build_bert(tensors: dict[str, Array], config: dict[str, Any]) -> onnx.ModelProto:
    """A BertModel without pooler: input_ids, attention_mask, token_type_ids [B,Q] -> last_hidden_state [B,Q,hidden].

    Args:
        tensors: float32 weights under Hugging Face's names; a linear layer's weight is [out, in].
        config: The model's config.json.

    Returns:
        The model, checked by onnx. Per layer: MatMul(query, key^T) -> Div sqrt(D) -> Add mask -> Softmax -> MatMul.
    """
    graph = Graph()
    add, constant = graph.add, graph.constant
    heads, size = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]

    def linear(x: str, at: str, name: str) -> str:
        # Stored as [in, out]: a Transpose in the graph would cost time at every start.
        weight = graph.half(f"{name}.weight", tensors[f"{name}.weight"].T)
        bias = constant(f"{name}.bias", tensors[f"{name}.bias"])
        return add("Add", f"{at}/Add", add("MatMul", f"{at}/MatMul", x, weight), bias)

    def norm(x: str, at: str, name: str, output: str = "") -> str:
        weights = [constant(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias")]
        node = f"{at}/LayerNormalization"
        return add("LayerNormalization", node, x, *weights, output=output, axis=-1, epsilon=config["layer_norm_eps"])

    def rows(kind: str, indices: str) -> str:
        name, at = f"embeddings.{kind}_embeddings.weight", f"/embeddings/{kind}_embeddings"
        table = constant(name, tensors[name].astype(np.float16))
        return add("Cast", f"{at}/Cast", add("Gather", f"{at}/Gather", table, indices), to=TensorProto.FLOAT)

    # Position ids: the first Q of 0 .. max_position_embeddings-1.
    start, stop = (constant(f"slice_{i}", np.array([i], np.int64)) for i in (0, 2))
    axis = constant("slice_1", np.array([1], np.int64))
    positions = constant("embeddings.position_ids", np.arange(config["max_position_embeddings"], dtype=np.int64)[None])
    length = add("Slice", "/embeddings/Slice", add("Shape", "/embeddings/Shape", "input_ids"), axis, stop)
    positions = add("Slice", "/embeddings/Slice_1", positions, start, length, axis)
    x = add("Add", "/embeddings/Add", rows("word", "input_ids"), rows("token_type", "token_type_ids"))
    x = add("Add", "/embeddings/Add_1", x, rows("position", positions))
    x = norm(x, "/embeddings/LayerNorm", "embeddings.LayerNorm")

    # The mask, [B,1,1,K]: 0 where a key may be seen, the lowest float32 where not.
    mask = add("Unsqueeze", "/Unsqueeze", "attention_mask", constant("mask_axes", np.array([1, 2], np.int64)))
    mask = add("Cast", "/Cast", mask, to=TensorProto.FLOAT)
    mask = add("Sub", "/Sub", constant("mask_one", np.float32(1)), mask)
    mask = add("Mul", "/Mul", mask, constant("mask_lowest", np.finfo(np.float32).min))

    split = constant("split_heads", np.array([0, 0, heads, size], np.int64))
    merge = constant("merge_heads", np.array([0, 0, heads * size], np.int64))
    root = constant("sqrt_head_size", np.float32(math.sqrt(size)))
    sqrt2, unit, half = (
        constant(f"gelu_{name}", np.float32(number)) for name, number in (("sqrt2", 2**0.5), ("one", 1), ("half", 0.5))
    )
    last = config["num_hidden_layers"] - 1
    for layer in range(last + 1):
        scope, name = f"/encoder/layer.{layer}", f"encoder.layer.{layer}"
        at = f"{scope}/attention/self"
        parts = {}
        for i, part in enumerate(("query", "key", "value")):
            projected = linear(x, f"{at}/{part}", f"{name}.attention.self.{part}")
            suffix = f"_{i}" if i else ""
            shaped = add("Reshape", f"{at}/Reshape{suffix}", projected, split)
            # The key is transposed once, to [B,H,D,K], as TorchScript merges the two transposes.
            perm = [0, 2, 3, 1] if part == "key" else [0, 2, 1, 3]
            parts[part] = add("Transpose", f"{at}/Transpose{suffix}", shaped, perm=perm)
        scores = add("MatMul", f"{at}/MatMul", parts["query"], parts["key"])
        masked = add("Add", f"{at}/Add", add("Div", f"{at}/Div", scores, root), mask)
        weights = add("Softmax", f"{at}/Softmax", masked, axis=-1)
        context = add("MatMul", f"{at}/MatMul_1", weights, parts["value"])
        context = add("Transpose", f"{at}/Transpose_3", context, perm=[0, 2, 1, 3])
        context = add("Reshape", f"{at}/Reshape_3", context, merge)
        at = f"{scope}/attention/output"
        x = add("Add", f"{at}/Add", linear(context, f"{at}/dense", f"{name}.attention.output.dense"), x)
        x = norm(x, f"{at}/LayerNorm", f"{name}.attention.output.LayerNorm")
        at = f"{scope}/intermediate"
        inner = linear(x, f"{at}/dense", f"{name}.intermediate.dense")
        at += "/intermediate_act_fn"
        curve = add("Erf", f"{at}/Erf", add("Div", f"{at}/Div", inner, sqrt2))
        inner = add("Mul", f"{at}/Mul", inner, add("Add", f"{at}/Add", curve, unit))
        inner = add("Mul", f"{at}/Mul_1", inner, half)
        at = f"{scope}/output"
        x = add("Add", f"{at}/Add", linear(inner, f"{at}/dense", f"{name}.output.dense"), x)
        x = norm(x, f"{at}/LayerNorm", f"{name}.output.LayerNorm", "last_hidden_state" if layer == last else "")

    def value(name: str, kind: int, *dims: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["batch_size", "sequence_length", *dims])

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "bert",
            [value(name, TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")],
            [value("last_hidden_state", TensorProto.FLOAT, heads * size)],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="attnx scripts/build_models.py",
    )
    onnx.checker.check_model(model, full_check=True)
    return model
