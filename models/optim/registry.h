// SPDX-License-Identifier: Apache-2.0
// The optimizers by name, with their options: configuration files, their help and `xylem train` know what is here. An
// optimizer enters itself, in its own .cpp (see lion.cpp).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/util/options.h"
#include "models/optim/optimizer.h"

namespace xylem {

struct OptimizerKind {
  std::string summary;
  // All options with their values: the defaults, and those given. Throws naming an option that is unknown, of another
  // type or out of range.
  std::function<OptionValues(const OptionValues& given)> resolve;
  std::function<std::string()> help;  // one line per option: name = default  # what it is
  std::function<std::unique_ptr<Optimizer>(Module& module, const FlatOptions& flat, double lr, double weight_decay,
                                           const OptionValues& given)>
      make;
};

std::vector<std::string> optimizer_names();                    // sorted
const OptimizerKind& optimizer_kind(const std::string& name);  // throws naming the nearest one

namespace detail {
bool add_optimizer(const std::string& name, OptimizerKind kind);
}

// `Args` has the members lr and weight_decay. `list(OptionTable&, Args&)` names its other fields, `check(const Args&)`
// throws if a value is out of range, `make(Module&, const FlatOptions&, const Args&)` gives the optimizer.
template <class Args, class List, class Check, class Make>
bool register_optimizer(const std::string& name, const std::string& summary, List list, Check check, Make make) {
  struct Filled {
    Args args{};
    OptionTable table;
  };
  auto fill = [=](Filled& f, const OptionValues& given) {
    list(f.table, f.args);
    f.table.assign("the optimizer '" + name + "'", given);
    check(f.args);
  };
  return detail::add_optimizer(name, {.summary = summary,
                                      .resolve =
                                          [=](const OptionValues& given) {
                                            Filled f;
                                            fill(f, given);
                                            return f.table.values();
                                          },
                                      .help =
                                          [=] {
                                            Filled f;
                                            fill(f, {});
                                            return f.table.help();
                                          },
                                      .make =
                                          [=](Module& module, const FlatOptions& flat, double lr, double weight_decay,
                                              const OptionValues& given) {
                                            Filled f;
                                            fill(f, given);
                                            f.args.lr = lr;
                                            f.args.weight_decay = weight_decay;
                                            return make(module, flat, f.args);
                                          }});
}

}  // namespace xylem
