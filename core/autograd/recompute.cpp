// SPDX-License-Identifier: Apache-2.0
#include "core/autograd/autograd.h"
#include "core/autograd/node.h"
#include "core/util/rng.h"

namespace xylem {
namespace {

const OpSpec& kRecompute =
    (new OpSpec("recompute"))
        ->role(OpRole::composed)
        .not_exportable("the operations inside are exported, not this one")
        .samples([] {
          Tensor x = sample_normal({3, 4});
          return std::vector<Sample>{
              {"transposed", {x}, [](const Tensors& in) -> Tensors {
                 return {recompute([](const Tensors& t) { return t[0].transpose(0, 1).contiguous(); }, in)};
               }}};
        });

}  // namespace

Tensor recompute(const std::function<Tensor(const Tensors&)>& fn, const Tensors& inputs) {
  if (!grad_enabled()) return fn(inputs);
  RngState before = rng::state();
  Tensor out = no_grad([&] { return fn(inputs).detach(); });
  std::vector<Saved> saved(inputs.begin(), inputs.end());
  // Parameters used inside fn need gradients even when no input does, so the node is attached unconditionally.
  detail::attach(kRecompute, {&out, 1}, inputs,
                 [fn, saved, before](std::span<const Tensor> grads, const Wanted& want) -> Tensors {
                   Tensors local;
                   for (size_t i = 0; i < saved.size(); ++i) {
                     Tensor t = saved[i].get();
                     if (t.defined()) {
                       t = t.detach();
                       if (want[int(i)]) t.set_requires_grad();
                     }
                     local.push_back(t);
                   }
                   RngState after = rng::state();
                   rng::set_state(before);
                   Tensor again;
                   {
                     EnableGrad recording;
                     again = fn(local);
                   }
                   rng::set_state(after);
                   backward({again}, {grads[0]});
                   Tensors result;
                   for (size_t i = 0; i < local.size(); ++i)
                     result.push_back(want[int(i)] ? local[i].grad() : Tensor());
                   return result;
                 });
  detail::observe(kRecompute, {&out, 1}, inputs, {});
  return out;
}

}  // namespace xylem
