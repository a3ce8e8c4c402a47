// SPDX-License-Identifier: Apache-2.0
#include "core/autograd/probe.h"
#include "core/random/rng.h"

namespace xylem {
namespace {

const OpSpec& kRecompute =
    (new OpSpec("recompute"))
        ->double_backward()
        .role(OpRole::composed)
        .not_exportable("the operations inside are exported, not this one")
        .samples([] {
          Tensor x = sample_normal({3, 4});
          return std::vector<Sample>{
              {"transposed", {x}, [](const Tensors& in) -> Tensors {
                 return {recompute([](const Tensors& t) { return t[0].transpose(0, 1).contiguous(); }, in)};
               }}};
        });

// Draws the random numbers that were drawn from `state` on, and then goes on where the program was.
class Replay {
 public:
  explicit Replay(const RngState& state) : after_(rng::state()) { rng::set_state(state); }
  ~Replay() { rng::set_state(after_); }
  Replay(const Replay&) = delete;

 private:
  RngState after_;
};

}  // namespace

// The node's inputs are those of fn and whatever else fn was seen to read. In the second run fn gets the inputs with
// their history, and the walk ends where the node's own edges lead: so gradients of all of them come out of one place,
// and the pass that asked for them decides what becomes of them.
Tensor recompute(const std::function<Tensor(const Tensors&)>& fn, const Tensors& inputs) {
  if (!grad_enabled()) return fn(inputs);
  const RngState before = rng::state();
  Tensors reads = inputs;
  Tensor out;
  {
    Probe probe(inputs);
    out = fn(inputs);
    probe.note({&out, 1});
    out = out.detach();
    reads.insert(reads.end(), probe.found().begin(), probe.found().end());
  }
  if (detail::wants_node(reads)) {
    std::vector<Saved> saved(reads.begin(), reads.end());
    detail::attach(kRecompute, {&out, 1}, reads,
                   [fn, saved, before, count = inputs.size()](std::span<const Tensor> grads, const Wanted& want) {
                     Tensors kept;
                     for (const Saved& s : saved) kept.push_back(s.get());
                     kept.resize(count);
                     const std::vector<Edge> ends = detail::running_node->edges;
                     Tensor again;
                     {
                       Replay numbers(before);
                       EnableGrad recording;
                       again = fn(kept);
                     }
                     return gradients_at(again, grads[0], ends, want);
                   });
  }
  detail::observe(kRecompute, {&out, 1}, inputs, {});
  return out;
}

}  // namespace xylem
