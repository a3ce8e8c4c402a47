// SPDX-License-Identifier: Apache-2.0
#include "models/loop/team.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <thread>

#include "core/random/rng.h"
#include "core/util/file.h"
#include "core/util/file_error.h"
#include "distributed/watchdog/watchdog.h"
#include "distributed/world/world.h"

namespace xylem {

BatchSplit Team::split(int64_t global_batch, int64_t micro_batch) const {
  XY_CHECK(global_batch > 0 && global_batch % size() == 0, "global_batch (", global_batch,
           ") is not a multiple of the ", size(), " ranks that share it");
  const int64_t mine = global_batch / size(), micro = micro_batch > 0 ? micro_batch : mine;
  XY_CHECK(mine % micro == 0, "global_batch (", global_batch, ") leaves each of ", size(), " ranks ", mine,
           " samples, which is not a multiple of micro_batch (", micro, ")");
  return {.micro = micro, .micro_batches = mine / micro};
}

void Team::seed(uint64_t seed) const {
  RngState state = rng::state();
  state.seed = seed + uint64_t(rank()) * 0x9E3779B97F4A7C15ull;
  rng::set_state(state);
}

bool Team::any(bool mine) const {
  if (size() == 1) return mine;
  auto all = group_.gather_integers(mine);
  return std::any_of(all.begin(), all.end(), [](int64_t v) { return v != 0; });
}

double Team::largest(double mine) const {
  if (size() == 1) return mine;
  for (int64_t bits : group_.gather_integers(std::bit_cast<int64_t>(mine)))
    mine = std::max(mine, std::bit_cast<double>(bits));
  return mine;
}

void Team::barrier() const {
  if (size() > 1) group_.barrier();
}

void Team::on_root(const std::function<void()>& action) const {
  std::exception_ptr thrown;
  std::string why;
  int64_t reason = 0;
  if (root()) {
    try {
      action();
    } catch (const std::exception& e) {
      const auto* ours = dynamic_cast<const Error*>(&e);
      thrown = std::current_exception();
      why = ours ? ours->message() : e.what();
      reason = reason_of(e);
    }
  }
  if (size() > 1) {
    why = group_.gather_strings(why)[0];
    reason = group_.gather_integers(reason)[0];
  }
  if (thrown) std::rethrow_exception(thrown);
  if (reason != 0) throw FileError(why, int(reason));
  XY_CHECK(why.empty(), why);
}

void Team::check_shared(const std::string& folder, double patience) const {
  namespace fs = std::filesystem;
  using Clock = std::chrono::steady_clock;
  if (size() == 1) return;
  fs::path path = fs::absolute(folder);
  std::string token = ".shared_" + std::to_string(::getpid()) + "_" +
                      std::to_string(std::chrono::system_clock::now().time_since_epoch().count()),
              trouble;
  on_root([&] {
    try {
      fs::create_directories(path);
      replace_file((path / token).string(), "x");
    } catch (const std::exception& e) {
      int reason = reason_of(e);
      throw FileError(detail::concat("cannot write to run.dir ('", path.string(), "'): ", std::strerror(reason)),
                      reason);
    }
  });
  token = group_.gather_strings(token)[0];
  bool seen = fs::exists(path / token);
  for (auto end = Clock::now() + std::chrono::duration<double>(patience); !seen && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::error_code ignored;
    fs::directory_iterator look_anew(path.parent_path(), ignored);
    seen = fs::exists(path / token, ignored);
  }
  auto blind = group_.gather_strings(seen ? "" : world().host + " ('" + path.string() + "')");
  auto root_sees = group_.gather_strings(world().host + " ('" + path.string() + "')")[0];
  if (root()) fs::remove(path / token);
  std::map<std::string, std::string> hosts;
  for (size_t r = 0; r < blind.size(); ++r)
    if (!blind[r].empty()) hosts[blind[r]] += (hosts[blind[r]].empty() ? "" : ", ") + std::to_string(r);
  for (const auto& [host, ranks] : hosts)
    trouble +=
        (trouble.empty() ? "" : "; ") + host + ", rank" + (ranks.find(',') == std::string::npos ? " " : "s ") + ranks;
  if (!trouble.empty()) watchdog::stop();  // it would wait for files of the others that it cannot see
  XY_CHECK(trouble.empty(),
           "run.dir must be one folder for all ranks, on a file system that their hosts share: what rank 0 writes on ",
           root_sees, " is not seen on ", trouble);
}

}  // namespace xylem
