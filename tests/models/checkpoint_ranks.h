// SPDX-License-Identifier: Apache-2.0
// A training state, and ranks that save it together: threads of the test.
#pragma once
#include <barrier>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/autograd/autograd.h"
#include "models/checkpoint/checkpoint.h"
#include "models/nn/layers.h"
#include "models/optim/optimizers.h"
#include "tests/support.h"

namespace xylem {

struct Net : Module {
  Linear fc{40, 30}, small{3, 1};
  BatchNorm2d norm{3};
  Buffer nothing{empty({0, 4})};
  XY_MEMBERS(fc, small, norm, nothing)
};

struct Session {
  Net net;
  AdamW opt{net, {.lr = 0.1}};
  Ema ema{net, opt.params(), 0.9};
  CheckpointParts parts{net, &opt, &ema};

  explicit Session(double offset = 0) {
    NoGrad guard;
    for (auto& part : {state_dict(net), opt.state(), ema.state()})
      for (const NamedTensor& t : part)
        t.tensor.copy_(arange(t.tensor.numel(), f32).reshape(t.tensor.shape()) + offset);
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> all;
    for (auto& part : {state_dict(net), opt.state(), ema.state()})
      for (const NamedTensor& t : part) all.push_back(t.tensor.to_vector<float>());
    return all;
  }
};

// Runs f(peers) on one thread per rank; the first error is rethrown once all have ended.
template <class F>
inline void on_ranks(int size, F&& f) {
  std::barrier meet(size);
  std::vector<std::string> texts(static_cast<size_t>(size));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Peers peers{rank, size, [&, rank](const std::string& mine) {
                    texts[size_t(rank)] = mine;
                    meet.arrive_and_wait();
                    auto all = texts;
                    meet.arrive_and_wait();
                    return all;
                  }};
      try {
        f(peers);
      } catch (...) {
        errors[size_t(rank)] = std::current_exception();
        meet.arrive_and_drop();
      }
    });
  for (std::thread& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace xylem
