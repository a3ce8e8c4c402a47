// SPDX-License-Identifier: Apache-2.0
#include "models/loop/nan_search.h"

#include <cmath>

namespace xylem {
namespace {

// "nan" or "inf" if the tensor holds one.
std::string find_bad(const Tensor& t) {
  if (!t.defined() || !is_float(t.dtype())) return "";
  NoGrad guard;
  for (double v : t.to_vector<double>())
    if (!std::isfinite(v)) return std::isnan(v) ? "nan" : "inf";
  return "";
}

// Views make nothing: what they show, perhaps memory that is yet to be written, others answer for.
bool is_view(std::span<const Tensor> outputs, std::span<const Tensor> inputs) {
  for (const Tensor& in : inputs)
    for (const Tensor& out : outputs)
      if (in.defined() && out.defined() && in.storage() == out.storage()) return true;
  return false;
}

}  // namespace

void NanSearch::on_op(const OpSpec& spec, std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                      const Attrs&) {
  if (busy_ || !forward_ || !finding_.empty()) return;
  busy_ = true;  // reading a result records operations itself
  std::string label = spec.name + " (operation " + std::to_string(++count_) + " of the forward pass)", bad;
  for (const Tensor& out : outputs)
    if (bad.empty() && !is_view(outputs, inputs)) bad = find_bad(out);
  if (bad.empty()) {
    for (const Tensor& in : inputs) {
      if (!in.defined()) continue;
      std::string& readers = readers_[in.ptr().get()];
      if (!readers.empty()) readers.insert(0, " or ");
      readers.insert(0, label);
      kept_.push_back(in);
    }
    for (const Tensor& out : outputs) watch_gradient(out);
  } else {
    finding_ = "the first " + bad + " was made by " + label + ", inputs";
    for (const Tensor& in : inputs) {
      std::string already = find_bad(in);
      if (in.defined()) finding_.append(" ").append(in.shape().str());
      if (!already.empty()) finding_ += " (already holds " + already + ")";
    }
  }
  busy_ = false;
}

void NanSearch::watch_gradient(const Tensor& result) {
  if (!result.requires_grad() || result.is_leaf()) return;
  kept_.push_back(result);
  result.register_hook([this, index = kept_.size() - 1](const Tensor& gradient) {
    if (finding_.empty())
      if (std::string bad = find_bad(gradient); !bad.empty())
        finding_ =
            "the forward pass is finite; the first " + bad + " was made by the backward pass of " + blame(kept_[index]);
    return Tensor();
  });
}

void NanSearch::check_gradients(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& p : parameters) {
    if (!finding_.empty() || p.tensor.grad_stale()) continue;
    if (std::string bad = find_bad(p.tensor.grad()); !bad.empty())
      finding_ =
          "the first " + bad + " is in the gradient of " + p.name + ", made by the backward pass of " + blame(p.tensor);
  }
}

std::string NanSearch::blame(const Tensor& t) const {
  auto it = readers_.find(t.ptr().get());
  return it == readers_.end() ? "the loss" : it->second;
}

}  // namespace xylem
