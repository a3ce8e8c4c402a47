// SPDX-License-Identifier: Apache-2.0
#include "distributed/job/plan.h"

#include <memory>

#include "core/util/check.h"
#include "distributed/group/control.h"
#include "distributed/job/machine.h"
#include "distributed/plan/measured.h"
#include "distributed/plan/tuner.h"
#include "distributed/world/launcher.h"
#include "distributed/world/world.h"

namespace xylem {

void obey(const Plan& plan, Device device) {
  if (device.is_cuda()) {
    tuner::set_plan(plan);
    return;
  }
  auto shared = std::make_shared<const Plan>(plan);
  for (int k = 0; k < 5; ++k) {
    auto kind = CollectiveKind(k);
    auto choose = [shared, kind](int64_t bytes, int ranks) {
      const PlanEntry* e = shared->find(kind, bytes);
      const bool counts = e && (ranks == shared->ranks || e->basis == Basis::pinned);
      // Without a plan: what the backend does by itself.
      return counts ? e->algorithm : bytes < (64 << 10) ? Algorithm::tree : Algorithm::ring;
    };
    collectives::set_algorithm(kind, plan.entries.empty() ? collectives::Choice() : choose);
  }
}

Plan share_plan(const Plan& plan, const Group& group) {
  if (group.size() == 1) return plan;
  Plan shared = Plan::from_json(group.broadcast_string(group.rank() == 0 ? plan.to_json() : "", 0));
  auto hashes = group.gather_strings(shared.hash());
  std::string others;
  for (size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
  XY_CHECK(others.empty(), "the plan of ranks ", others, " of group '", group.name(),
           "' differs from that of rank 0: do all ranks run the same build?");
  return shared;
}

namespace {

// What is pinned needs no knowledge of the machine.
Plan pinned_plan(const PlanOptions& o) {
  Plan plan{.entries = {}, .ranks = o.ranks, .nodes = xylem::world().nodes, .topology = {}, .notes = {}};
  if (o.algorithm == "auto" && !o.deterministic) {
    plan.notes.push_back("no plan: the machine is not known, NCCL chooses");
    return plan;
  }
  for (int k = 0; k < 5; ++k) {
    const bool tree = o.algorithm == "tree" && CollectiveKind(k) == CollectiveKind::all_reduce;
    plan.entries.push_back({.kind = CollectiveKind(k),
                            .algorithm = tree ? Algorithm::tree : Algorithm::ring,
                            .basis = Basis::pinned,
                            .reason = "pinned"});
    if (o.deterministic) plan.entries.back().protocol = Protocol::simple;
  }
  return plan;
}

}  // namespace

Plan apply_plan(const Group& world, Device device, PlanOptions options) {
  Plan plan;
  const Topology machine = job_machine(world, device);
  if (world.rank() == 0) {
    options.ranks = world.size();
    options.cpu = !device.is_cuda();
    options.shared_gpu = device.is_cuda() && share_gpu();
    auto measured = load_measured(machine, world.size(), xylem::world().nodes);
    if (measured && !options.shared_gpu) options.measured = &*measured;
    plan = device.is_cuda() && machine.gpus.empty() ? pinned_plan(options) : make_plan(machine, options);
  }
  plan = share_plan(plan, world);
  obey(plan, device);
  return plan;
}

}  // namespace xylem
