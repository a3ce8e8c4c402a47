// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "models/export/lint/rules_onnx.h"

namespace xylem::lint {
namespace {

const std::set<std::string> kDataDependent = {
    "NonZero", "NonMaxSuppression", "RoiAlign", "Unique", "Compress", "Loop", "If", "Scan"};

std::string hint(const std::string& op) {
  if (op == "DynamicQuantizeLinear" || op == "QLinearConv" || op == "QLinearMatMul" || op == "ConvInteger" ||
      op == "MatMulInteger")
    return "Quantize with QuantizeLinear and DequantizeLinear pairs";
  if (op == "SoftmaxCrossEntropyLoss" || op == "NegativeLogLikelihoodLoss") return "Export the model without its loss";
  if (op == "Bernoulli" || op == "Multinomial") return "Draw samples outside the model";
  return "Express it by supported operators, or export for a newer target";
}

bool is_false(const Graph& g, const std::string& tensor) {
  const auto* t = g.constant(tensor);
  if (!t) return false;
  std::vector<float> v = g.values(*t);
  return !v.empty() && v[0] == 0;
}

void versions(const Rules& r) {
  int opset = r.graph.opset, ir = int(r.graph.model.ir_version());
  if (opset > r.target.max_opset)
    r.error("O1", "model", "opset ", opset, ", but ", r.target.name, " reads up to ", r.target.max_opset,
            ". Export with opset ", r.target.max_opset, " or for a newer target.");
  if (ir > r.target.max_ir)
    r.error("O1", "model", "IR version ", ir, ", but ", r.target.name, " reads up to ", r.target.max_ir,
            ". Export with the smallest IR version of the opset.");
}

void support(const Rules& r, const Node& n) {
  const std::string& op = n.op_type();
  OpSupport s = tensorrt_support(op, r.target.version);
  if (s.supported) return;
  if (s.since.empty())
    r.error("O2", label(n), op, " is not supported by any TensorRT. ", hint(op), ".");
  else
    r.error("O2", label(n), op, " is not supported by TensorRT ", r.target.version.str(), " (first: ", s.since, "). ",
            hint(op), ".");
}

bool all_ones(const std::vector<int64_t>& v) {
  for (int64_t x : v)
    if (x != 1) return false;
  return true;
}

int outputs_used(const Node& n) {
  int used = 0;
  for (int i = 0; i < n.output_size(); ++i)
    if (!n.output(i).empty()) used = i + 1;
  return used;
}

void attributes(const Rules& r, const Node& n) {
  const std::string& op = n.op_type();
  auto refuse = [&](const auto&... what) { r.error("O3", label(n), op, ": ", what...); };
  if (op == "Resize") {
    if (attribute(n, "antialias", 0)) refuse("antialias = 1 is not supported; write 0.");
    std::string mode = attribute_text(n, "mode", "nearest");
    if (mode != "nearest" && mode != "linear")
      r.warning("O3", label(n), op, ": mode ", mode, " is not among nearest and linear.");
    std::string policy = attribute_text(n, "keep_aspect_ratio_policy", "stretch");
    if (policy != "stretch") refuse("keep_aspect_ratio_policy ", policy, " is not supported; write stretch.");
    std::string coordinates = attribute_text(n, "coordinate_transformation_mode", "half_pixel");
    static const std::set<std::string> known = {"half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn",
                                                "asymmetric", "align_corners"};
    if (!known.contains(coordinates)) refuse("coordinate_transformation_mode ", coordinates, " is not supported.");
  }
  if (op == "MaxPool" && outputs_used(n) > 1) refuse("the output Indices is not supported.");
  if ((op == "MaxPool" || op == "AveragePool" || op == "LpPool") && !all_ones(attribute_ints(n, "dilations")))
    refuse("dilations other than 1 are not supported.");
  if (op == "TopK") {
    if (attribute(n, "sorted", 1) != 1) refuse("sorted must be 1.");
    if (const auto* k = r.graph.constant(input(n, 1)))
      if (auto v = r.graph.values(*k); !v.empty() && v[0] >= 3840)
        refuse("K = ", int64_t(v[0]), " must be less than 3840.");
  }
  if (op == "ScatterND" && attribute_text(n, "reduction", "none") != "none")
    refuse("reduction ", attribute_text(n, "reduction", "none"), " is not supported.");
  if (op == "LayerNormalization" && outputs_used(n) > 1) refuse("only the first output is supported.");
  if (op == "Dropout" && !input(n, 2).empty() && !is_false(r.graph, input(n, 2)))
    refuse("training_mode must be a constant false.");
  if (op == "Gemm" && (r.graph.rank(input(n, 0)) > 2 || r.graph.rank(input(n, 1)) > 2))
    refuse("both inputs must have two dimensions.");
  if (op == "OneHot" && !r.graph.constant(input(n, 1))) refuse("depth must be a constant.");
  if (op == "CumSum" && !r.graph.constant(input(n, 1))) refuse("axis must be a constant.");
  if (op.starts_with("Reduce") && !input(n, 1).empty() && !r.graph.constant(input(n, 1)))
    refuse("axes must be an initializer.");
  if (op == "Attention") {
    if (!input(n, 4).empty() || !input(n, 5).empty() || outputs_used(n) > 1)
      refuse("past and present keys and values are not supported; keep the cache outside the node.");
    if (int rank = r.graph.rank(input(n, 0)); rank > 0 && rank != 4)
      refuse("query, key and value must have four dimensions, not ", rank, ".");
    if (has_attribute(n, "softcap")) refuse("softcap is not supported.");
  }
}

void group_norm(const Rules& r, const Node& n) {
  if (r.graph.opset < 21)
    r.error("O5", label(n), "GroupNormalization of opset ", r.graph.opset,
            " has one gain per group instead of one per channel; decompose it.");
  else if (attribute(n, "num_groups", 0) == 1)
    r.error("O5", label(n), "GroupNormalization with one group is computed wrongly by TensorRT 10.16; decompose it.");
  else if (r.target.version < Version{10, 9})
    r.error("O5", label(n), "GroupNormalization of opset 21 is read by TensorRT 10.9 and later; decompose it.");
}

void causal_attention(const Rules& r, const Node& n) {
  if (!attribute(n, "is_causal", 0) || !input(n, 4).empty()) return;
  const TensorType &q = r.graph.type(input(n, 0)), &k = r.graph.type(input(n, 1));
  if (!q.shape || !k.shape || q.shape->size() < 3 || k.shape->size() < 3) return;
  const Dim &sq = (*q.shape)[q.shape->size() - 2], &sk = (*k.shape)[k.shape->size() - 2];
  if (sq == sk && (sq.fixed() || !sq.symbol.empty())) return;
  r.error("O6", label(n),
          "is_causal aligns the mask to the top left, but the key's length may differ from the query's; "
          "decoding needs an explicit mask.");
}

}  // namespace

void check_operators(const Rules& r) {
  versions(r);
  for (const Node* n : r.graph.nodes()) {
    if (!n->domain().empty() && n->domain() != "ai.onnx") continue;  // R10 names it
    const std::string& op = n->op_type();
    if (r.target.tensorrt) {
      support(r, *n);
      attributes(r, *n);
      if (op == "GroupNormalization") group_norm(r, *n);
      if (kDataDependent.contains(op))
        r.error("O4", label(*n), op,
                "'s output size depends on the data (or its body on a condition): TensorRT needs an "
                "upper bound and Triton cannot batch it. Replace it by a mask.");
    } else if (kDataDependent.contains(op)) {
      r.warning("O4", label(*n), op, "'s output size depends on the data: Triton cannot batch it.");
    }
    if (op == "Attention") causal_attention(r, *n);
  }
}

}  // namespace xylem::lint
