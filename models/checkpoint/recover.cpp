// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/recover.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/util/file.h"
#include "models/checkpoint/files.h"
#include "models/checkpoint/snapshot.h"
#include "models/checkpoint/writer.h"

namespace xylem::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr double kPatience = 2;  // with processes of a job that was killed and is not yet gone

std::vector<std::string> gather(const Peers& peers, const std::string& mine) {
  return peers.size > 1 ? peers.gather(mine) : std::vector{mine};
}

// The files in shared memory whose names begin so.
std::vector<std::string> snapshot_files(const std::string& begin) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(snapshot_folder(), none))
    if (entry.path().filename().string().starts_with(begin)) found.push_back(entry.path().string());
  return found;
}

// Those of rank 0, newer than the newest checkpoint.
std::vector<Aside> unfinished(const std::string& dir, const Peers& peers) {
  std::string list;
  auto steps = list_steps(dir);
  for (const Aside& a : list_asides(dir))
    if (steps.empty() || a.step > steps.back()) list += std::to_string(a.step) + " " + a.attempt + "\n";
  std::istringstream lines(gather(peers, list)[0]);
  std::vector<Aside> all;
  for (Aside a; lines >> a.step >> a.attempt;) all.push_back(a);
  return all;
}

// What of it lies on this host: the ranks that see the same folder divide it among them.
std::vector<LeftSnapshot> copies_of(const Aside& aside, const Peers& peers) {
  struct stat folder {};
  std::string boot = "?", own;
  if (::stat(snapshot_folder().c_str(), &folder) == 0 && fs::exists("/proc/sys/kernel/random/boot_id"))
    boot = read_file("/proc/sys/kernel/random/boot_id");
  own = boot + std::to_string(folder.st_dev) + ":" + std::to_string(folder.st_ino);
  size_t sharing = 0, before = 0;
  auto folders = gather(peers, own);
  for (size_t r = 0; r < folders.size(); ++r) {
    sharing += folders[r] == own;
    before += folders[r] == own && r < size_t(peers.rank);
  }
  std::vector<LeftSnapshot> mine;
  auto files = snapshot_files("xylem_" + aside.attempt + "_rank");
  std::sort(files.begin(), files.end());
  for (size_t i = before; i < files.size(); i += sharing)
    if (auto left = LeftSnapshot::open(files[i], kPatience); left && left->job() && left->job()->step == aside.step)
      mine.push_back(std::move(*left));
  return mine;
}

void write_copy(const std::string& dir, const LeftSnapshot& left) {
  Job job = *left.job();
  job.dir = dir;
  write(job, true);
}

// The ranks but the first, all together, then that one, which makes the whole of it. Whether it is one.
bool finish(const std::string& dir, const Aside& aside, const Peers& peers, std::string& trouble) {
  std::vector<LeftSnapshot> copies = copies_of(aside, peers);
  std::string error;
  bool done = false;
  auto attempt = [&](auto&& f) {
    try {
      f();
    } catch (const Error& e) {
      error = e.message();
    } catch (const std::exception& e) {
      error = e.what();
    }
  };
  attempt([&] {
    if (peers.rank == 0) done = publish_if_done(dir, aside);
  });
  bool published = gather(peers, done ? "done" : "")[0] == "done";
  for (const LeftSnapshot& c : copies)
    attempt([&] {
      if (!published && c.job()->rank > 0 && !reported(dir, aside, c.job()->rank)) write_copy(dir, c);
    });
  gather(peers, "");
  for (const LeftSnapshot& c : copies)
    attempt([&] {
      if (published || c.job()->rank != 0) return;
      for (int r = 1; r < c.job()->size; ++r) XY_CHECK(reported(dir, aside, r), "the part of rank ", r, " is lost");
      write_copy(dir, c);
      done = true;
    });
  for (const std::string& text : gather(peers, done ? "done" : error)) {
    published |= text == "done";
    if (text != "done" && trouble.empty()) trouble = text;
  }
  for (const LeftSnapshot& c : copies) c.remove();
  return published;
}

// Copies that no save lacks.
void sweep() {
  for (const std::string& file : snapshot_files("xylem_"))
    if (auto left = LeftSnapshot::open(file))
      if (!left->job() || !fs::exists(aside_path(left->job()->dir, {left->job()->step, left->job()->attempt})))
        left->remove();
}

}  // namespace

std::vector<std::string> recover(const std::string& dir, const Peers& peers) {
  std::vector<std::string> notes;
  for (const Aside& aside : unfinished(dir, peers)) {
    std::string trouble, text = "the checkpoint of step " + std::to_string(aside.step);
    if (finish(dir, aside, peers, trouble))
      notes.push_back("finished " + text + ", which an earlier job was writing when it ended");
    else
      notes.push_back(text + " was being written when an earlier job ended, and is lost" +
                      (trouble.empty() ? "" : ": " + trouble));
  }
  sweep();
  return notes;
}

}  // namespace xylem::checkpoint
