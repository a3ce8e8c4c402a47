// SPDX-License-Identifier: Apache-2.0
// Sequential: layers applied one after another. Functions take part too:
//   Sequential net(Conv2d(1, 8, 3), relu, [](const Tensor& x) { return x.flatten(1); }, Linear(5408, 10));
#pragma once
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/nn/module.h"

namespace xylem {

class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Layers>
  requires(sizeof...(Layers) > 0 &&
           !(std::is_same_v<std::decay_t<Layers>, Sequential> && ...)) explicit Sequential(Layers&&... layers) {
    (add(std::forward<Layers>(layers)), ...);
  }

  // Appends a module that can be called with a tensor, or a function from tensor to tensor. A function takes a number
  // too, so names agree with PyTorch's Sequential.
  template <class L>
  void add(L&& layer) {
    using T = std::decay_t<L>;
    if constexpr (std::is_base_of_v<Module, T>) {
      auto module = std::make_unique<T>(std::forward<L>(layer));
      calls_.push_back([m = module.get()](const Tensor& x) { return (*m)(x); });
      modules_.push_back(std::move(module));
    } else {
      calls_.push_back(std::forward<L>(layer));
      modules_.push_back(nullptr);
    }
  }

  size_t size() const { return calls_.size(); }
  Module* operator[](size_t i) { return modules_[i].get(); }  // null for a function

  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (const auto& call : calls_) y = call(y);
    return y;
  }

  void list_members(std::vector<Member>& out) override {
    for (size_t i = 0; i < modules_.size(); ++i)
      if (modules_[i]) out.push_back({.name = std::to_string(i), .module = modules_[i].get()});
  }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
  std::vector<std::function<Tensor(const Tensor&)>> calls_;
};

}  // namespace xylem
