// SPDX-License-Identifier: Apache-2.0
#include "core/op/lowering.h"

namespace xylem {
namespace {

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

template <class T>
const T* attribute(const ImportedOp& node, const std::string& name) {
  for (const auto& [attr, value] : node.attrs)
    if (attr == name) {
      const T* found = std::get_if<T>(&value);
      XY_CHECK(found, "attribute ", name, " is of another kind than it should be");
      return found;
    }
  return nullptr;
}

}  // namespace

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

std::string OnnxBuilder::scalar(double value, DType type) { return constant(full({}, value, type)); }
std::string OnnxBuilder::ints(const std::vector<int64_t>& values) {
  return constant(from_vector(values, {int64_t(values.size())}));
}

std::string OnnxBuilder::cast(const std::string& tensor, DType type) {
  const DType to = is_float(type) ? f32 : type;
  if (type_of(tensor) == to) return tensor;
  return node("Cast", {tensor}, {{"to", int64_t(onnx_type(to))}}, to);
}
std::string OnnxBuilder::scalar_of(const std::string& one_element) { return node("Squeeze", {one_element, ints({0})}); }
std::string OnnxBuilder::transpose(const std::string& x, const std::vector<int64_t>& order) {
  return node("Transpose", {x}, {{"perm", order}});
}
std::string OnnxBuilder::unsqueeze(const std::string& x, const std::vector<int64_t>& axes) {
  return node("Unsqueeze", {x, ints(axes)});
}

std::string OnnxBuilder::reduce(const std::string& op, const std::string& x, const std::vector<int64_t>& axes,
                                bool keepdims) {
  OnnxAttrs attrs{{"keepdims", int64_t(keepdims)}};
  OnnxNames inputs{x};
  if (!axes.empty()) {
    if (opset() >= 18 || op == "ReduceSum")
      inputs.push_back(ints(axes));
    else
      attrs.emplace_back("axes", axes);
  }
  return node(op, inputs, attrs);
}

// 0 keeps a dimension of the input and one -1 is inferred, so that most shapes are constants.
std::string OnnxBuilder::reshape(const std::string& x, const std::vector<TracedSize>& from,
                                 const std::vector<TracedSize>& to) {
  std::vector<int64_t> shape;
  int inferred = 0;
  bool zero = false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].fixed()) {
      shape.push_back(to[i].at[0]);
      zero = zero || to[i].at[0] == 0;
    } else if (i < from.size() && from[i] == to[i]) {
      shape.push_back(0);
    } else {
      shape.push_back(-1);
      ++inferred;
    }
  }
  if (zero || inferred > 1) {
    if (!zero || opset() >= 14)
      return node("Reshape", {x, sizes(to)}, zero ? OnnxAttrs{{"allowzero", int64_t(1)}} : OnnxAttrs{});
    XY_FAIL("a reshape to an empty tensor needs opset 14");
  }
  return node("Reshape", {x, ints(shape)});
}

std::string OnnxBuilder::range(const std::string& begin, const std::string& end) {
  return node("Range", {begin, end, scalar(1, i64)}, {}, i64);
}
std::string OnnxBuilder::additive_mask(const std::string& visible) {
  return node("Where", {visible, scalar(0), scalar(kMasked)}, {}, f32);
}

const Tensor& ImportedOp::in(size_t i) const {
  XY_CHECK(has(i), "input ", i, " is missing");
  return inputs[i];
}
std::vector<int64_t> ImportedOp::ints_of(size_t i) const {
  XY_CHECK(in(i).dtype() == i64 || in(i).dtype() == i32, "input ", i, " must hold whole numbers, not ", in(i).dtype());
  return in(i).to_vector<int64_t>();
}
int64_t ImportedOp::integer(const std::string& attr, int64_t otherwise) const {
  const auto* v = attribute<int64_t>(*this, attr);
  return v ? *v : otherwise;
}
double ImportedOp::number(const std::string& attr, double otherwise) const {
  const auto* v = attribute<double>(*this, attr);
  return v ? *v : otherwise;
}
std::string ImportedOp::text(const std::string& attr, const std::string& otherwise) const {
  const auto* v = attribute<std::string>(*this, attr);
  return v ? *v : otherwise;
}
std::vector<int64_t> ImportedOp::integers(const std::string& attr, std::vector<int64_t> otherwise) const {
  const auto* v = attribute<std::vector<int64_t>>(*this, attr);
  return v ? *v : otherwise;
}
std::vector<int64_t> ImportedOp::attr_or_input(const std::string& attr, size_t input) const {
  return has(input) ? ints_of(input) : integers(attr, {});
}

OnnxNames lower_to_identity(OnnxBuilder& onnx, const ExportedOp& op) { return {onnx.node("Identity", {op.inputs[0]})}; }
OnnxNames promoted(OnnxBuilder& onnx, const ExportedOp& op, int first) {
  const DType t = promote(op.input_types[first], op.input_types[first + 1]);
  return {onnx.cast(op.inputs[first], t), onnx.cast(op.inputs[first + 1], t)};
}

}  // namespace xylem
