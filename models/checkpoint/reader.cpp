// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/reader.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/util/file.h"
#include "models/checkpoint/files.h"
#include "models/checkpoint/safetensors.h"
#include "models/nn/lazy.h"

namespace xylem {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct CheckpointReader::Impl {
  struct Part {
    std::string file, entry;
    int64_t begin = 0, count = 0;
  };
  struct Section {
    std::vector<Stored> tensors;
    std::unordered_map<std::string, std::pair<size_t, std::vector<Part>>> parts;  // index in tensors, ranges in order
    const Stored* find(const std::string& name) const {
      auto it = parts.find(name);
      return it == parts.end() ? nullptr : &tensors[it->second.first];
    }
  };
  std::string folder;
  CheckpointInfo info;
  std::map<std::string, Section> sections;
  std::map<std::string, std::unordered_map<std::string, Tensor>> files;  // opened ones, their tensors by entry

  const Section& section(const std::string& name) const {
    auto it = sections.find(name);
    XY_CHECK(it != sections.end(), "the checkpoint '", folder, "' has no part '", name, "'");
    return it->second;
  }

  const std::unordered_map<std::string, Tensor>& open(const std::string& file) {
    auto [it, fresh] = files.try_emplace(file);
    if (fresh)
      for (NamedTensor& t : load_safetensors((fs::path(folder) / file).string())) it->second[t.name] = t.tensor;
    return it->second;
  }

  Tensor entry(const Part& part) {
    const auto& entries = open(part.file);
    auto it = entries.find(part.entry);
    XY_CHECK(it != entries.end() && it->second.numel() == part.count, "'", folder, "/", part.file, "' lacks '",
             part.entry, "', which manifest.json names");
    return it->second;
  }

  void read_state() {
    Json state = Json::parse(read_file((fs::path(folder) / "state.json").string()));
    XY_CHECK(state.value("format", 0) == 1, "'", folder, "' was written by a newer Xylem");
    info.step = state.at("step");
    info.world = state.value("world", 1);
    auto add = [&](const Json& r) { info.rng.push_back({r.at("seed"), r.at("step"), r.at("op")}); };
    if (const Json& random = state.at("rng"); random.is_array())
      for (const Json& r : random) add(r);
    else
      add(random);
    if (state.contains("ema_updates")) info.ema_updates = state["ema_updates"].get<int64_t>();
    info.extra = state.at("extra").get<std::map<std::string, std::string>>();
  }

  void read_manifest() {
    Json manifest = Json::parse(read_file((fs::path(folder) / "manifest.json").string()));
    for (const auto& [name, list] : manifest.at("tensors").items()) {
      Section& s = sections[name];
      for (const auto& [tensor, json] : list.items()) {
        Stored stored{tensor, parse_dtype(json.at("dtype").get<std::string>()),
                      Shape(json.at("shape").get<std::vector<int64_t>>())};
        std::vector<Part> parts;
        for (const Json& p : json.at("pieces")) {
          Part part{.file = p.at("file"), .entry = tensor, .begin = p.at("begin"), .count = p.at("count")};
          XY_CHECK(fs::path(part.file).filename() == part.file, "'", folder, "/manifest.json' names the file '",
                   part.file, "' outside of the folder");
          if (part.count != stored.shape.numel())
            part.entry += "[" + std::to_string(part.begin) + ":" + std::to_string(part.begin + part.count) + "]";
          parts.push_back(std::move(part));
        }
        s.parts[tensor] = {s.tensors.size(), std::move(parts)};
        s.tensors.push_back(std::move(stored));
      }
    }
  }

  // One process wrote whole tensors.
  void read_headers() {
    for (const auto& found : fs::directory_iterator(folder)) {
      if (found.path().extension() != ".safetensors") continue;
      const std::string file = found.path().filename().string();
      Section& s = sections[found.path().stem().string()];
      for (NamedTensor& t : load_safetensors((fs::path(folder) / file).string())) {
        s.parts[t.name] = {s.tensors.size(), {{file, t.name, 0, t.tensor.numel()}}};
        s.tensors.push_back({t.name, t.tensor.dtype(), t.tensor.shape()});
      }
    }
  }
};

CheckpointReader::CheckpointReader(std::string folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(folder);
  try {
    impl_->read_state();
    impl_->info.world > 1 ? impl_->read_manifest() : impl_->read_headers();
  } catch (const nlohmann::json::exception& e) {
    XY_FAIL("the checkpoint '", impl_->folder, "' cannot be read: ", e.what());
  }
}
CheckpointReader::~CheckpointReader() = default;

const CheckpointInfo& CheckpointReader::info() const { return impl_->info; }
bool CheckpointReader::has(const std::string& section) const { return impl_->sections.contains(section); }

const std::vector<CheckpointReader::Stored>& CheckpointReader::tensors(const std::string& section) const {
  static const std::vector<Stored> none;
  auto it = impl_->sections.find(section);
  return it == impl_->sections.end() ? none : it->second.tensors;
}

void CheckpointReader::read(const std::string& section, const std::string& name, int64_t begin,
                            const Tensor& flat) const {
  const Impl::Section& s = impl_->section(section);
  const Stored* stored = s.find(name);
  XY_CHECK(stored, "the checkpoint '", impl_->folder, "' has no tensor '", name, "' in ", section);
  int64_t end = begin + flat.numel();
  XY_CHECK(begin >= 0 && end <= stored->shape.numel(), section, " tensor '", name, "': elements ", begin, " to ", end,
           " of ", stored->shape.numel());
  NoGrad guard;
  Tensor to = flat.detach().view({flat.numel()});
  for (const Impl::Part& part : s.parts.at(name).second) {
    int64_t first = std::max(begin, part.begin), last = std::min(end, part.begin + part.count);
    if (first >= last) continue;
    Tensor from = impl_->entry(part).view({part.count}).narrow(0, first - part.begin, last - first);
    to.narrow(0, first - begin, last - first).copy_(from);
  }
}

Tensor CheckpointReader::whole(const std::string& section, const std::string& name) const {
  const Impl::Section& s = impl_->section(section);
  const Stored* stored = s.find(name);
  XY_CHECK(stored, "the checkpoint '", impl_->folder, "' has no tensor '", name, "' in ", section);
  const auto& parts = s.parts.at(name).second;
  if (parts.size() == 1) return impl_->entry(parts[0]).view(stored->shape);
  Tensor t = empty(stored->shape, stored->dtype);
  read(section, name, 0, t);
  return t;
}

std::vector<NamedTensor> CheckpointReader::all(const std::string& section) const {
  std::vector<NamedTensor> tensors;
  for (const Stored& t : this->tensors(section)) tensors.push_back({t.name, whole(section, t.name)});
  return tensors;
}

namespace {

// What a tensor is kept for: "ema", "exp_avg" and "master" for the optimizer's, "scaler", "model".
std::string purpose(const Piece& p) {
  return p.section == "optimizer" ? p.name.substr(0, p.name.find('.')) : p.section;
}

// Why a checkpoint of the same model may have none of a purpose.
std::string without_any(const std::string& purpose) {
  if (purpose == "ema") return "no averaged weights: it was saved with ema.decay = 0";
  if (purpose == "master") return "no fp32 master weights: it was saved with another train.precision";
  if (purpose == "scaler") return "no loss scale: it was saved with a train.precision other than fp16";
  return "no '" + purpose + "' of the optimizer: it was saved with another optimizer.name, or another setting of it";
}

}  // namespace

void CheckpointReader::restore(const std::vector<Piece>& pieces) const {
  constexpr int kListed = 8;
  std::map<std::string, std::vector<std::string>> faults;  // by purpose
  std::map<std::string, size_t> wanted, absent;
  for (const Piece& p : pieces) {
    auto it = impl_->sections.find(p.section);
    const Stored* stored = it == impl_->sections.end() ? nullptr : it->second.find(p.name);
    ++wanted[purpose(p)];
    if (!stored) ++absent[purpose(p)];
    if (!stored || stored->shape.numel() != p.shape.numel())
      faults[purpose(p)].push_back(detail::concat(
          p.name, " in ", p.section, stored ? detail::concat(": has ", stored->shape, ", needs ", p.shape) : ""));
  }
  std::string text;
  for (const auto& [what, list] : faults) {
    if (what != "model" && absent[what] == wanted[what]) {
      text += "\n    " + without_any(what);
      continue;
    }
    for (size_t i = 0; i < std::min<size_t>(list.size(), kListed); ++i) text += "\n    " + list[i];
    if (list.size() > kListed) text += detail::concat("\n    and ", list.size() - kListed, " more");
  }
  XY_CHECK(text.empty(), "the checkpoint lacks or has in another shape:", text);
  NoGrad guard;
  for (const Piece& p : pieces)
    if (p.data.is_contiguous())
      read(p.section, p.name, p.begin, p.data);
    else
      p.data.detach().copy_(whole(p.section, p.name).view(p.data.shape()));
}

std::vector<NamedTensor> load_weights(const std::string& folder) {
  CheckpointReader reader(folder);
  return reader.all(reader.has("ema") ? "ema" : "model");
}

std::vector<NamedTensor> lazy_weights(const std::string& folder) {
  auto reader = std::make_shared<CheckpointReader>(folder);
  const std::string section = reader->has("ema") ? "ema" : "model";
  std::vector<NamedTensor> tensors;
  for (const auto& t : reader->tensors(section))
    tensors.push_back({t.name, lazy_tensor(t.shape, t.dtype,
                                           [reader, section, name = t.name] { return reader->whole(section, name); })});
  return tensors;
}

}  // namespace xylem
