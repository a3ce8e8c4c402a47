// SPDX-License-Identifier: Apache-2.0
// The registry of lowerings, and what an ExportedOp answers.
#include "models/export/lower/lowering.h"

#include <map>

namespace xylem {
namespace {

std::map<std::string, OnnxLowering>& lowerings() {
  static auto* all = new std::map<std::string, OnnxLowering>;
  return *all;
}

// Operations that only make sense in training, and why they are not in graphs.
const std::map<std::string, std::string>& obstacles() {
  static const auto& all = *new std::map<std::string, std::string>{
      {"cross_entropy", "it is a loss: export the forward pass up to the logits"},
      {"slice_scatter", "it belongs to a backward pass"},
      {"where_backward", "it belongs to a backward pass"},
      {"conv2d_weight_gradient", "it belongs to a backward pass"},
      {"add_gradients", "it belongs to a backward pass"},
      {"dropout", "the layer is still in training mode; call eval() or pass training = false"},
  };
  return all;
}

template <class T>
const T& attribute(const ExportedOp& op, const std::string& name, const char* kind) {
  for (const auto& [attr, value] : op.attrs)
    if (attr == name) {
      const T* found = std::get_if<T>(&value);
      XY_CHECK(found, op.name, ": attribute ", name, " is not ", kind);
      return *found;
    }
  XY_FAIL(op.name, " has no attribute ", name);
}

int64_t fixed(const ExportedOp& op, const std::string& name, const TracedSize& s) {
  XY_CHECK(s.fixed(), op.name, op.scope.empty() ? "" : " in " + op.scope, ": attribute ", name,
           " follows a dynamic dimension (", s.at[0], ", ", s.at[1], ", ", s.at[2],
           " in the three traces); ONNX needs one value");
  return s.at[0];
}

}  // namespace

void register_onnx_lowering(const std::string& op, OnnxLowering lowering) { lowerings()[op] = std::move(lowering); }

const OnnxLowering* find_onnx_lowering(const std::string& op) {
  auto it = lowerings().find(op);
  return it == lowerings().end() ? nullptr : &it->second;
}

std::string export_obstacle(const OpSpec& op) {
  if (!op.export_obstacle.empty()) return op.export_obstacle;
  auto it = obstacles().find(op.name);
  return it == obstacles().end() ? "" : it->second;
}

int64_t ExportedOp::integer(const std::string& attr) const { return fixed(*this, attr, size(attr)); }
const TracedSize& ExportedOp::size(const std::string& attr) const {
  return attribute<TracedSize>(*this, attr, "a whole number");
}
double ExportedOp::number(const std::string& attr) const { return attribute<double>(*this, attr, "a number"); }
bool ExportedOp::flag(const std::string& attr) const { return attribute<bool>(*this, attr, "true or false"); }
const std::string& ExportedOp::text(const std::string& attr) const {
  return attribute<std::string>(*this, attr, "a string");
}
const std::vector<TracedSize>& ExportedOp::sizes(const std::string& attr) const {
  return attribute<std::vector<TracedSize>>(*this, attr, "a list of whole numbers");
}
std::vector<int64_t> ExportedOp::integers(const std::string& attr) const {
  std::vector<int64_t> values;
  for (const TracedSize& s : sizes(attr)) values.push_back(fixed(*this, attr, s));
  return values;
}
bool ExportedOp::has(const std::string& attr) const {
  for (const auto& [name, value] : attrs)
    if (name == attr) return true;
  return false;
}

std::string OnnxBuilder::scalar(double value, DType type) { return constant(full({}, value, type), ""); }
std::string OnnxBuilder::ints(const std::vector<int64_t>& values) {
  return constant(from_vector(values, {int64_t(values.size())}), "");
}

}  // namespace xylem
