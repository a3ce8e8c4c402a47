// SPDX-License-Identifier: Apache-2.0
#include "distributed/group/control.h"

#include <atomic>
#include <mutex>

#include "distributed/group/backend.h"

namespace xylem::collectives {
namespace {

std::mutex mutex;
std::atomic<bool> flag{false};
std::string reason_;
Choice choices[5];

}  // namespace

int64_t message_limit = int64_t(1) << 30;

void abort_all(const std::string& reason) {
  {
    std::lock_guard lock(mutex);
    if (flag) return;
    reason_ = reason;
    flag = true;
  }
#ifdef XY_WITH_NCCL
  detail::abort_nccl();
#endif
}
bool aborted() { return flag; }
std::string abort_reason() {
  std::lock_guard lock(mutex);
  return reason_;
}

std::string async_error() {
#ifdef XY_WITH_NCCL
  return detail::nccl_async_error();
#else
  return {};
#endif
}

void set_algorithm(CollectiveKind kind, Choice choice) {
  std::lock_guard lock(mutex);
  choices[static_cast<int>(kind)] = std::move(choice);
}

Algorithm algorithm_for(CollectiveKind kind, int64_t bytes, int ranks) {
  std::lock_guard lock(mutex);
  const Choice& choice = choices[static_cast<int>(kind)];
  if (choice) return choice(bytes, ranks);
  return bytes < (64 << 10) ? Algorithm::tree : Algorithm::ring;
}

bool stop() {
#ifdef XY_WITH_NCCL
  detail::stop_nccl();
#endif
#ifdef XY_WITH_MPI
  return detail::stop_mpi() && !flag;
#else
  return !flag;
#endif
}

}  // namespace xylem::collectives
