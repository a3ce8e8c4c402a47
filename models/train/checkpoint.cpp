// SPDX-License-Identifier: Apache-2.0
#include "models/train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "core/autograd/autograd.h"
#include "core/util/rng.h"
#include "models/nn/safetensors.h"
#include "models/train/crc32c.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
constexpr const char* kDone = "DONE";

struct FileSum {
  uint64_t bytes = 0;
  uint32_t crc = 0;
  bool operator==(const FileSum&) const = default;
};

std::optional<FileSum> sum_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};
  FileSum sum;
  std::vector<char> block(1 << 20);
  while (in.read(block.data(), std::streamsize(block.size())), in.gcount() > 0) {
    sum.crc = crc32c(block.data(), size_t(in.gcount()), sum.crc);
    sum.bytes += uint64_t(in.gcount());
  }
  if (in.bad()) return {};
  return sum;
}

void write_file(const fs::path& file, const std::string& text) {
  int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool ok = fd >= 0;
  for (size_t done = 0; ok && done < text.size();) {
    ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    ok = n > 0;
    if (ok) done += size_t(n);
  }
  ok = ok && ::fsync(fd) == 0;
  int reason = errno;
  if (fd >= 0) ::close(fd);
  XY_CHECK(ok, "cannot write '", file.string(), "': ", std::strerror(reason));
}

void sync_folder(const fs::path& folder) {
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  XY_CHECK(in, "cannot open '", file.string(), "': ", std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string folder_name(int64_t step) {
  std::string digits = std::to_string(step);
  return "step_" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_") || name.size() < 13 || name.find_first_not_of("0123456789", 5) != std::string::npos)
    return {};
  return std::stoll(name.substr(5));
}

// Copies tensors into others of the same names; a missing or mis-shaped one is an error before anything is copied.
void restore(const std::string& what, const std::vector<NamedTensor>& into, const std::vector<NamedTensor>& from) {
  std::unordered_map<std::string, Tensor> given;
  for (const NamedTensor& t : from) given[t.name] = t.tensor;
  std::string missing;
  for (const NamedTensor& t : into) {
    auto it = given.find(t.name);
    if (it == given.end() || it->second.numel() != t.tensor.numel()) missing += "\n    " + t.name;
  }
  XY_CHECK(missing.empty(), "the checkpoint's ", what, " lacks or has in another shape:", missing);
  NoGrad guard;
  for (const NamedTensor& t : into) t.tensor.copy_(given[t.name].reshape(t.tensor.shape()));
}

std::vector<NamedTensor> with_prefix(const std::string& prefix, std::vector<NamedTensor> tensors) {
  for (NamedTensor& t : tensors) t.name = prefix + t.name;
  return tensors;
}

std::vector<NamedTensor> optimizer_tensors(const CheckpointParts& parts) {
  std::vector<NamedTensor> all;
  if (parts.optimizer) all = parts.optimizer->state();
  if (parts.scaler)
    for (NamedTensor& t : with_prefix("scaler.", parts.scaler->state())) all.push_back(std::move(t));
  return all;
}

std::string passing_over(const std::string& folder, const std::string& why) {
  return detail::concat("passing over the damaged checkpoint ", folder, ": ", why);
}

}  // namespace

Checkpoints::Checkpoints(std::string run_dir, int64_t keep) : dir_(std::move(run_dir) + "/checkpoints"), keep_(keep) {}

std::string Checkpoints::path(int64_t step) const { return dir_ + "/" + folder_name(step); }

std::vector<int64_t> Checkpoints::steps() const {
  std::vector<int64_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir_, ignored))
    if (auto step = step_of(entry.path().filename().string())) found.push_back(*step);
  std::sort(found.begin(), found.end());
  return found;
}

void Checkpoints::save(int64_t step, const CheckpointParts& parts) {
  std::error_code ignored;
  fs::path aside = fs::path(dir_) / (".saving_" + folder_name(step)), final = path(step);
  for (const auto& entry : fs::directory_iterator(dir_, ignored))
    if (entry.path().filename().string().starts_with(".saving_")) fs::remove_all(entry.path(), ignored);
  try {
    fs::create_directories(aside);
    save_safetensors(aside / "model.safetensors", state_dict(parts.model), {{"format", "pt"}});
    if (auto tensors = optimizer_tensors(parts); !tensors.empty())
      save_safetensors(aside / "optimizer.safetensors", tensors);
    if (parts.ema) save_safetensors(aside / "ema.safetensors", parts.ema->state(), {{"format", "pt"}});

    RngState random = rng::state();
    nlohmann::ordered_json state{
        {"format", 1}, {"step", step}, {"rng", {{"seed", random.seed}, {"step", random.step}, {"op", random.op}}}};
    if (parts.ema) state["ema_updates"] = parts.ema->updates();
    state["extra"] = parts.extra;
    write_file(aside / "state.json", state.dump(2) + "\n");

    std::ostringstream done;
    for (const auto& entry : fs::directory_iterator(aside)) {
      auto sum = sum_file(entry.path());
      XY_CHECK(sum, "cannot read back '", entry.path().string(), "'");
      done << entry.path().filename().string() << ' ' << sum->bytes << ' ' << std::hex << sum->crc << std::dec << '\n';
    }
    write_file(aside / kDone, done.str());
    sync_folder(aside);
    fs::remove_all(final);  // one that was damaged and passed over
    fs::rename(aside, final);
    sync_folder(dir_);
  } catch (const std::exception& e) {
    fs::remove_all(aside, ignored);
    auto earlier = steps();
    XY_FAIL("cannot save a checkpoint at step ", step, ": ", e.what(),
            earlier.empty() ? std::string("; there is no earlier one")
                            : "; the one of step " + std::to_string(earlier.back()) + " is intact");
  }
  if (keep_ <= 0) return;
  auto all = steps();
  for (size_t i = 0; i + size_t(keep_) < all.size(); ++i) fs::remove_all(path(all[i]), ignored);
}

std::string Checkpoints::damage(const std::string& folder) {
  fs::path done_file = fs::path(folder) / kDone;
  if (!fs::exists(done_file)) return "it has no DONE file: it was not written to the end";
  std::istringstream done(read_text(done_file));
  std::string name;
  FileSum expected;
  bool has_model = false, has_state = false;
  while (done >> name >> std::dec >> expected.bytes >> std::hex >> expected.crc) {
    auto sum = sum_file(fs::path(folder) / name);
    if (!sum) return name + " is missing or cannot be read";
    if (sum->bytes != expected.bytes)
      return name + " has " + std::to_string(sum->bytes) + " bytes instead of " + std::to_string(expected.bytes);
    if (sum->crc != expected.crc) return name + " does not match its checksum";
    has_model |= name == "model.safetensors";
    has_state |= name == "state.json";
  }
  return has_model && has_state ? "" : "its DONE file is damaged";
}

std::optional<int64_t> Checkpoints::resume(CheckpointParts& parts, std::vector<std::string>* warnings) {
  auto all = steps();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    fs::path folder = path(*it);
    if (std::string why = damage(folder); !why.empty()) {
      if (warnings) warnings->push_back(passing_over(folder.string(), why));
      continue;
    }
    auto state = nlohmann::json::parse(read_text(folder / "state.json"));
    XY_CHECK(state.value("format", 0) == 1, "'", folder.string(), "' was written by a newer Xylem");
    try {
      load_state_dict(parts.model, load_safetensors(folder / "model.safetensors"));
      if (parts.optimizer || parts.scaler)
        restore("optimizer state", optimizer_tensors(parts), load_safetensors(folder / "optimizer.safetensors"));
      if (parts.ema) {
        restore("average", parts.ema->state(), load_safetensors(folder / "ema.safetensors"));
        parts.ema->set_updates(state.at("ema_updates").get<int64_t>());
      }
    } catch (const Error& e) {
      XY_FAIL("cannot resume from '", folder.string(), "': ", e.message());
    }
    const auto& random = state.at("rng");
    rng::set_state({random.at("seed"), random.at("step"), random.at("op")});
    parts.extra = state.at("extra").get<std::map<std::string, std::string>>();
    return state.at("step").get<int64_t>();
  }
  return {};
}

std::string find_checkpoint(const std::string& path, std::vector<std::string>* warnings) {
  XY_CHECK(fs::exists(path), "there is no run at '", path, "'");
  if (fs::exists(fs::path(path) / "state.json")) {
    std::string why = Checkpoints::damage(path);
    XY_CHECK(why.empty(), "the checkpoint '", path, "' is damaged: ", why);
    return path;
  }
  Checkpoints checkpoints(path, 0);
  auto all = checkpoints.steps();
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    std::string folder = checkpoints.path(*it), why = Checkpoints::damage(folder);
    if (why.empty()) return folder;
    if (warnings) warnings->push_back(passing_over(folder, why));
  }
  XY_FAIL("the run '", path, "' has no intact checkpoint");
}

}  // namespace xylem
