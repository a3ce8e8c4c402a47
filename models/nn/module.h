// SPDX-License-Identifier: Apache-2.0
// Module: a struct whose members are its parameters. XY_MEMBERS lists them once; names, devices, types and state
// dicts follow from that list.
//
//   struct Mlp : xy::Module {
//     xy::Linear up, down;
//     explicit Mlp(int width) : up(width, 4 * width), down(4 * width, width) {}
//     XY_MEMBERS(up, down)
//     xy::Tensor operator()(const xy::Tensor& x) const { return down(xy::gelu(up(x))); }
//   };
#pragma once
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"
#include "models/nn/parameter.h"

namespace xylem {

class Module;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// A tensor that belongs to a module's state but is not trained (running statistics).
struct Buffer {
  Tensor tensor;
  operator const Tensor&() const { return tensor; }
};

// One direct member of a module: a parameter, a buffer or a module.
struct Member {
  std::string name;
  Tensor* tensor = nullptr;
  Module* module = nullptr;
  bool is_buffer = false;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  // Moving keeps the tensors. A copy would share them with the original, which nobody means: copy with
  // load_state_dict(copy, state_dict(original)).
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  // In the order of XY_MEMBERS, with dotted names ("blocks.0.attn.qkv.weight"). A tensor reached twice (tied weights)
  // appears once, under its first name; undefined tensors (an absent bias) do not appear.
  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> buffers() const;
  // This module (named "") and everything below it, parents first.
  std::vector<std::pair<std::string, Module*>> modules();
  int64_t num_parameters() const;

  // Both work in place: handles to the parameters stay valid and gradients are dropped. to(DType) casts what is
  // floating point; of normalisation layers the statistics stay f32, and so do gains and biases in a 16-bit model.
  void to(Device device);
  void to(DType dtype);

  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  void requires_grad(bool on);  // of every parameter
  void zero_grad();

  virtual void list_members(std::vector<Member>&) {}  // written by XY_MEMBERS
  virtual bool keeps_f32() const { return false; }    // its own tensors stay f32 in a 16-bit model, buffers in any

 private:
  bool training_ = true;
};

// Parameters and buffers by name.
std::vector<NamedTensor> state_dict(const Module& module);

// Copies values into the module, casting to its types. Throws, having changed nothing, when a tensor is missing,
// unexpected or of another shape; the error lists them all. With strict = false missing and unexpected ones pass.
void load_state_dict(Module& module, const std::vector<NamedTensor>& tensors, bool strict = true);

namespace detail {

template <class T>
concept ModuleLike = std::is_base_of_v<Module, T>;
template <class T>
concept PointerLike = requires(T& t) {  // unique_ptr, shared_ptr, optional
  static_cast<bool>(t);
  *t;
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T>
void list_member(std::vector<Member>& out, const std::string& name, T& m) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (m.defined()) out.push_back({.name = name, .tensor = &m});
  } else if constexpr (std::is_same_v<T, Buffer>) {
    if (m.tensor.defined()) out.push_back({.name = name, .tensor = &m.tensor, .is_buffer = true});
  } else if constexpr (ModuleLike<T>) {
    out.push_back({.name = name, .module = &m});
  } else if constexpr (PointerLike<T>) {
    if (m) list_member(out, name, *m);
  } else if constexpr (TupleLike<T>) {
    int i = 0;
    std::apply([&](auto&... e) { (list_member(out, name + "." + std::to_string(i++), e), ...); }, m);
  } else {
    static_assert(
        requires { m.begin(); }, "XY_MEMBERS takes tensors, buffers, modules and containers of these");
    int i = 0;
    for (auto& e : m) list_member(out, name + "." + std::to_string(i++), e);
  }
}

// Takes the next name off a list written as "weight, bias".
inline std::string next_name(std::string_view& names) {
  size_t begin = names.find_first_not_of(" \t\n"), end = std::min(names.find(','), names.size());
  std::string_view name = names.substr(begin, end - begin);
  names.remove_prefix(std::min(end + 1, names.size()));
  return std::string(name.substr(0, name.find_last_not_of(" \t\n_") + 1));
}

template <class... M>
void list_members(std::vector<Member>& out, [[maybe_unused]] std::string_view names, M&... members) {
  (list_member(out, next_name(names), members), ...);
}

}  // namespace detail
}  // namespace xylem

// The members that hold a module's state, in order: Tensor (a parameter), Buffer, a module, or std::vector, array,
// tuple, optional, unique_ptr or shared_ptr of these. A trailing underscore is left out of the name. A class derived
// from a module with members lists the inherited ones too.
#define XY_MEMBERS(...)                                                                 \
  void list_members(std::vector<::xylem::Member>& xy_listed_) override {                \
    ::xylem::detail::list_members(xy_listed_, #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__); \
  }
