// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/util/file.h"
#include "core/util/file_error.h"
#include "models/checkpoint/files.h"
#include "models/checkpoint/safetensors.h"

namespace xylem::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr auto kPatience = std::chrono::minutes(10);  // without a report from anyone
constexpr auto kHurry = std::chrono::seconds(3);

fs::path aside_of(const Job& job) { return aside_path(job.dir, {job.step, job.attempt}); }
fs::path report_of(const fs::path& aside, int rank) { return aside / (rank_name(rank) + ".json"); }

std::string file_of(const std::string& section, int rank, int size) {
  return section + (size > 1 ? "." + rank_name(rank) : "") + ".safetensors";
}

// In a file a part of a tensor is called "name[begin:end]".
std::string entry_name(const std::string& name, int64_t begin, int64_t count, bool whole) {
  return whole ? name : name + "[" + std::to_string(begin) + ":" + std::to_string(begin + count) + "]";
}

// What one rank has written.
struct Report {
  FileSums files = {};
  Json pieces = Json::array();  // [section, name, dtype, shape, begin, count]
  RngState random = {};
};

Report write_pieces(const Job& job, const fs::path& folder) {
  Report report{.random = job.random};
  Pace pace(job.mb_per_second * 1e6);
  std::map<std::string, std::vector<const Piece*>> sections;
  for (const Piece& p : job.pieces) sections[p.section].push_back(&p);
  for (auto& [section, pieces] : sections) {
    for (const Piece* p : pieces)
      report.pieces.push_back({section, p->name, name_of(p->data.dtype()), p->shape.vec(), p->begin, p->count()});
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece* a, const Piece* b) {
      return size_of(a->data.dtype()) > size_of(b->data.dtype());
    });
    std::vector<SafetensorsEntry> entries;
    for (const Piece* p : pieces)
      entries.push_back({entry_name(p->name, p->begin, p->count(), p->whole()), p->data.dtype(),
                         p->whole() ? p->shape : Shape{p->count()}});
    std::string header = safetensors_header(entries, {{"format", "pt"}}), name = file_of(section, job.rank, job.size);
    FileWriter file((folder / name).string(), &pace);
    file.write(header.data(), header.size());
    for (const Piece* p : pieces) file.write(p->data.raw(), p->data.nbytes());
    report.files[name] = file.finish();
  }
  return report;
}

// A file by that name is whole.
void publish(const fs::path& file, const Json& json) {
  fs::path aside = file.string() + ".tmp";
  write_text(aside.string(), json.dump());
  fs::rename(aside, file);
}

Json to_json(const RngState& r) { return {{"seed", r.seed}, {"step", r.step}, {"op", r.op}}; }

Json to_json(const Report& r) {
  Json files;
  for (const auto& [name, sum] : r.files) files[name] = {sum.bytes, sum.crc};
  return {{"files", files}, {"pieces", r.pieces}, {"rng", to_json(r.random)}};
}

Report parse_report(const std::string& text) {
  Json json = Json::parse(text);
  if (json.contains("error")) XY_FAIL(json["error"].get<std::string>());
  Report r{.pieces = json.at("pieces")};
  for (const auto& [name, sum] : json.at("files").items()) r.files[name] = {sum.at(0), sum.at(1)};
  const Json& random = json.at("rng");
  r.random = {random.at("seed"), random.at("step"), random.at("op")};
  return r;
}

// The reports of the other ranks, in order; throws the first error among them once all have reported.
std::vector<Report> collect(const Job& job, const fs::path& folder, const std::atomic<bool>& hurry) {
  using Clock = std::chrono::steady_clock;
  std::vector<Report> reports(size_t(job.size) - 1);
  std::vector<int> missing;
  for (int r = 1; r < job.size; ++r) missing.push_back(r);
  std::string error;
  auto heard = Clock::now();
  auto pause = std::chrono::milliseconds(1);
  while (!missing.empty()) {
    size_t before = missing.size();
    sync_folder(folder.string());  // opening it makes a network file system look anew
    std::erase_if(missing, [&](int r) {
      fs::path file = report_of(folder, r);
      if (!fs::exists(file)) return false;
      try {
        reports[size_t(r) - 1] = parse_report(read_file(file.string()));
      } catch (const Error& e) {
        if (error.empty()) error = detail::concat("rank ", r, ": ", e.message());
      }
      return true;
    });
    if (missing.size() < before) {
      heard = Clock::now();
      pause = std::chrono::milliseconds(1);
      continue;
    }
    XY_CHECK(Clock::now() - heard < (hurry ? std::chrono::duration_cast<std::chrono::seconds>(kHurry)
                                           : std::chrono::duration_cast<std::chrono::seconds>(kPatience)),
             "rank ", missing.front(), " has not written its part");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(100));
  }
  XY_CHECK(error.empty(), error);
  return reports;
}

// Name -> dtype, shape and where its ranges lie; every element is in exactly one of them.
Json manifest_of(const std::vector<Report>& reports) {
  Json tensors;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    for (const Json& p : reports[rank].pieces) {
      auto section = p[0].get<std::string>();
      Json& tensor = tensors[section][p[1].get<std::string>()];
      if (tensor.is_null()) tensor = {{"dtype", p[2]}, {"shape", p[3]}, {"pieces", Json::array()}};
      tensor["pieces"].push_back(
          {{"file", file_of(section, int(rank), int(reports.size()))}, {"begin", p[4]}, {"count", p[5]}});
      XY_ASSERT(tensor["dtype"] == p[2] && tensor["shape"] == p[3], "rank ", rank, " has '", p[1].dump(),
                "' in another type or shape");
    }
  for (const auto& [section, list] : tensors.items())
    for (auto& [name, tensor] : list.items()) {
      Json& pieces = tensor["pieces"];
      std::sort(pieces.begin(), pieces.end(),
                [](const Json& a, const Json& b) { return a["begin"].get<int64_t>() < b["begin"].get<int64_t>(); });
      int64_t at = 0, all = Shape(tensor["shape"].get<std::vector<int64_t>>()).numel();
      for (const Json& p : pieces) {
        XY_ASSERT(p["begin"] == at, section, ".", name, " is saved twice or not at all from element ", at);
        at += p["count"].get<int64_t>();
      }
      XY_ASSERT(at == all, section, ".", name, ": ", at, " of ", all, " elements are saved");
    }
  return {{"tensors", tensors}};
}

void remove_old(const Job& job) {
  if (job.keep <= 0) return;
  std::error_code ignored;
  auto all = list_steps(job.dir);
  for (size_t i = 0; i + size_t(job.keep) < all.size(); ++i) {
    fs::path folder = fs::path(job.dir) / folder_name(all[i]);
    fs::path aside = fs::path(job.dir) / (".removing_" + folder_name(all[i]) + "_" + job.attempt);
    fs::rename(folder, aside, ignored);  // never a half-removed checkpoint under its name
    fs::remove_all(aside, ignored);
  }
}

// The files are listed in DONE: the reports have served, and the folder gets its name.
void publish_folder(const fs::path& aside, const FileSums& files, const fs::path& final) {
  for (const auto& entry : fs::directory_iterator(aside)) {
    std::string name = entry.path().filename().string();
    if (name != "DONE" && !files.contains(name)) fs::remove_all(entry.path());
  }
  sync_folder(aside.string());
  fs::remove_all(final);  // one that was damaged and passed over
  fs::rename(aside, final);
  sync_folder(final.parent_path().string());
}

void complete(const Job& job, const fs::path& aside, Report own, const std::atomic<bool>& hurry) {
  std::vector<Report> reports{std::move(own)};
  for (Report& r : collect(job, aside, hurry)) reports.push_back(std::move(r));
  FileSums files;
  for (const Report& r : reports) files.insert(r.files.begin(), r.files.end());

  Json random = to_json(reports[0].random);
  if (job.size > 1) {
    random = Json::array();
    for (const Report& r : reports) random.push_back(to_json(r.random));
    files["manifest.json"] = write_text((aside / "manifest.json").string(), manifest_of(reports).dump(1) + "\n");
  }
  Json state{{"format", 1}, {"step", job.step}, {"world", job.size}, {"rng", random}};
  if (job.ema_updates) state["ema_updates"] = *job.ema_updates;
  state["extra"] = job.extra;
  files["state.json"] = write_text((aside / "state.json").string(), state.dump(2) + "\n");

  write_text((aside / "DONE").string(), done_text(files));
  publish_folder(aside, files, fs::path(job.dir) / folder_name(job.step));
}

}  // namespace

void begin(const Job& job) {
  std::error_code later;  // write() meets it again
  fs::create_directories(aside_of(job), later);
}

uint64_t write(const Job& job, const std::atomic<bool>& hurry) {
  fs::path aside = aside_of(job), report_file = report_of(aside, job.rank);
  std::error_code ignored;
  uint64_t bytes = 0;
  try {
    fs::create_directories(aside);
    Report report = write_pieces(job, aside);
    for (const auto& [name, sum] : report.files) bytes += sum.bytes;
    if (job.rank > 0) {
      sync_folder(aside.string());
      publish(report_file, to_json(report));
      return bytes;
    }
    complete(job, aside, std::move(report), hurry);
  } catch (const std::exception& e) {
    const auto* ours = dynamic_cast<const Error*>(&e);
    std::string why = ours ? ours->message() : e.what();
    if (job.rank > 0) {
      try {
        publish(report_file, {{"error", why}});
      } catch (const std::exception&) {  // rank 0 will miss the report
      }
    } else if (!hurry) {  // otherwise it may yet be finished
      try {               // nobody writes there any more when it is removed
        collect(job, aside, true);
      } catch (const std::exception&) {
      }
      fs::remove_all(aside, ignored);
    }
    auto earlier = list_steps(job.dir);
    why = detail::concat("cannot save a checkpoint at step ", job.step, ": ", why,
                         earlier.empty() ? std::string("; there is no earlier one")
                                         : "; the one of step " + std::to_string(earlier.back()) + " is intact");
    if (int reason = reason_of(e); reason != 0) throw FileError(why, reason);
    XY_FAIL(why);
  }
  remove_old(job);
  return bytes;
}

std::string aside_path(const std::string& dir, const Aside& aside) {
  return dir + "/.saving_" + folder_name(aside.step) + "_" + aside.attempt;
}

std::vector<Aside> list_asides(const std::string& dir) {
  std::vector<Aside> found;
  std::error_code ignored;
  const std::string begin = ".saving_";
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    std::string name = entry.path().filename().string();
    size_t end = name.find('_', begin.size() + 5);  // behind "step_"
    if (!name.starts_with(begin) || end == std::string::npos) continue;
    if (auto step = step_of(name.substr(begin.size(), end - begin.size())))
      found.push_back({*step, name.substr(end + 1)});
  }
  std::sort(found.begin(), found.end(), [](const Aside& a, const Aside& b) { return a.step < b.step; });
  return found;
}

bool reported(const std::string& dir, const Aside& aside, int rank) {
  fs::path report = report_of(aside_path(dir, aside), rank);
  return fs::exists(report) && !Json::parse(read_file(report.string())).contains("error");
}

bool publish_if_done(const std::string& dir, const Aside& aside) {
  fs::path folder = aside_path(dir, aside), done = folder / "DONE";
  auto files = fs::exists(done) ? parse_done(read_file(done.string())) : std::nullopt;
  if (!files) return false;
  for (const auto& [name, expected] : *files)
    if (sum_file((folder / name).string()) != expected) return false;
  publish_folder(folder, *files, fs::path(dir) / folder_name(aside.step));
  return true;
}

void remove_leftovers(const std::string& dir, const std::string& attempt) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    std::string name = entry.path().filename().string();
    if ((name.starts_with(".saving_") || name.starts_with(".removing_")) && !name.ends_with("_" + attempt))
      fs::remove_all(entry.path(), ignored);
  }
}

std::vector<int64_t> list_steps(const std::string& dir) {
  std::vector<int64_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (auto step = step_of(entry.path().filename().string())) found.push_back(*step);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace xylem::checkpoint
