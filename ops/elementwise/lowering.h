// SPDX-License-Identifier: Apache-2.0
// Pointwise operations as operators of ONNX, both ways.
#pragma once
#include "core/op/lowering.h"

namespace xylem::pointwise {

// The operator that a functor is: static constexpr OnnxOperator onnx{"Elu", 13, {{"alpha", 1}}}.
struct OnnxOperator {
  const char* name;
  int since = 13;  // opset that has it
  struct Number {
    const char* name = nullptr;
    double otherwise = 0;  // where a node does not say
  };
  Number numbers[2] = {};  // attributes: the functor's members, in their order
  struct Variant {
    const char *attribute = nullptr, *value = nullptr;
  } variant = {};  // the string attribute that asks for this functor, where the operator has several

  constexpr int count() const { return numbers[0].name == nullptr ? 0 : numbers[1].name == nullptr ? 1 : 2; }
};

// The same of other operators, for opsets and runtimes without it.
using Composition = std::string (*)(OnnxBuilder& onnx, const std::string& x);

OnnxLowering lower_unary(const OnnxOperator& op, Composition composed);
OnnxLowering lower_unary(Composition composed);
OnnxLowering lower_binary(const char* onnx_operator);
OnnxLowering lower_with_scalar(const char* onnx_operator);  // the other operand is the attribute "value"
// ONNX compares numbers, so bool becomes i32.
OnnxLowering lower_compare(const char* onnx_operator);
OnnxLowering lower_compare_scalar(const char* onnx_operator);

using BinaryCall = Tensor (*)(const Tensor&, const Tensor&);
OnnxImport import_binary(BinaryCall f);
OnnxImport import_chain(BinaryCall f);  // of one input or more

}  // namespace xylem::pointwise
