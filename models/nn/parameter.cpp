// SPDX-License-Identifier: Apache-2.0
#include "models/nn/parameter.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "core/tensor/access.h"

namespace xylem {
namespace {

struct Made {
  std::weak_ptr<TensorImpl> tensor;
  std::source_location at;
  bool member = false;
};

struct Account {
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, Made> made;
  size_t prune_at = 1024;

  void add(const Tensor& t, const std::source_location& at) {
    std::lock_guard lock(mutex);
    if (made.size() >= prune_at) {
      std::erase_if(made, [](const auto& entry) { return entry.second.tensor.expired(); });
      prune_at = std::max<size_t>(1024, 2 * made.size());
    }
    made.insert_or_assign(t.ptr().get(), Made{t.ptr(), at});
  }
};

Account& account() {
  static auto* all = new Account;  // outlives every parameter
  return *all;
}

std::string describe(const Tensor& t, const std::source_location& at) {
  std::string function = at.function_name();
  return t.shape().str() + ", made by " + function.substr(0, function.find('('));
}

}  // namespace

Tensor parameter(const Tensor& t, const std::source_location& at) {
  account().add(t, at);
  return t.set_requires_grad(true);
}

void detail::note_member(const Tensor& parameter) {
  std::lock_guard lock(account().mutex);
  auto it = account().made.find(parameter.ptr().get());
  if (it != account().made.end()) it->second.member = true;
}

std::vector<std::string> detail::stray_parameters() {
  std::lock_guard lock(account().mutex);
  std::vector<std::string> all;
  for (const auto& [key, m] : account().made) {
    if (m.member) continue;
    auto impl = m.tensor.lock();
    if (!impl) continue;
    Tensor t = detail::Access::handle(impl);
    if (t.requires_grad() && !t.grad_stale()) all.push_back(describe(t, m.at));
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace xylem
