// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/checkpoint.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

#include "core/random/rng.h"
#include "core/util/file.h"
#include "core/util/git_lfs.h"
#include "core/util/text.h"
#include "models/checkpoint/files.h"
#include "models/checkpoint/reader.h"
#include "models/checkpoint/recover.h"
#include "models/checkpoint/snapshot.h"
#include "models/checkpoint/writer.h"

namespace xylem {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The parts of one network, and what its sections' names begin with.
struct Network {
  std::string prefix;
  CheckpointParts::Other parts;
  std::string section(const char* name) const { return prefix + name; }
};

std::vector<Network> networks(const CheckpointParts& parts) {
  std::vector<Network> all{{"", {&parts.model, parts.optimizer, parts.ema, parts.scaler}}};
  for (const auto& [name, other] : parts.others) {
    XY_CHECK(!name.empty() && name.find_first_of("./\\") == std::string::npos, "'", name,
             "' cannot name a network of a checkpoint: it becomes part of file names");
    all.push_back({name + ".", other});
  }
  return all;
}

// The ZeRO stage: from 1 on a rank has shards of the optimizer's state, in 3 of the parameters too.
int zero_stage(const Network& n) { return n.parts.optimizer ? n.parts.optimizer->params().parallel().zero() : 0; }

std::vector<Piece> shard_pieces(const std::string& section, const std::vector<TensorShard>& shards) {
  std::vector<Piece> pieces;
  for (const TensorShard& s : shards) pieces.push_back({section, s.name, s.shape, s.begin, s.part, s.everywhere});
  return pieces;
}

std::vector<Piece> model_pieces(const Network& n) {
  if (!n.parts.model) return {};
  const std::string section = n.section("model");
  if (zero_stage(n) < 3) return whole_pieces(section, state_dict(*n.parts.model));
  n.parts.optimizer->params().refresh();
  std::vector<Piece> pieces = shard_pieces(section, n.parts.optimizer->params().shards());
  std::set<std::string> sharded;
  for (const FlatGroup& g : n.parts.optimizer->params().groups())
    for (const FlatSlot& s : g.slots) sharded.insert(s.name);
  std::vector<NamedTensor> whole = n.parts.model->buffers();
  for (const NamedTensor& p : n.parts.model->parameters())
    if (!sharded.contains(p.name)) whole.push_back(p);
  for (Piece& p : whole_pieces(section, whole)) pieces.push_back(std::move(p));
  return pieces;
}

std::vector<Piece> optimizer_pieces(const Network& n) {
  const std::string section = n.section("optimizer");
  std::vector<Piece> pieces;
  if (Optimizer* o = n.parts.optimizer)
    pieces = zero_stage(n) > 0 ? shard_pieces(section, o->shards()) : whole_pieces(section, o->state());
  std::vector<NamedTensor> scaler;
  if (n.parts.scaler)
    for (const NamedTensor& t : n.parts.scaler->state()) scaler.push_back({"scaler." + t.name, t.tensor});
  for (Piece& p : whole_pieces(section, scaler)) pieces.push_back(std::move(p));
  return pieces;
}

std::vector<Piece> ema_pieces(const Network& n) {
  if (!n.parts.ema) return {};
  const std::string section = n.section("ema");
  return zero_stage(n) > 0 ? shard_pieces(section, n.parts.ema->shards()) : whole_pieces(section, n.parts.ema->state());
}

std::vector<Piece> all_pieces(const CheckpointParts& parts) {
  std::vector<Piece> all;
  for (const Network& n : networks(parts))
    for (auto pieces : {model_pieces(n), optimizer_pieces(n), ema_pieces(n)})
      for (Piece& p : pieces) all.push_back(std::move(p));
  return all;
}

// Averages count their updates; those of the main network are in state.json.
constexpr const char* kUpdates = "ema_updates.";

void restore(const CheckpointReader& reader, const Network& n) {
  if (n.parts.model && zero_stage(n) < 3) {
    load_state_dict(*n.parts.model, reader.all(n.section("model")));
  } else if (n.parts.model) {
    reader.restore(model_pieces(n));
    n.parts.optimizer->params().parallel().publish();
  }
  reader.restore(optimizer_pieces(n));
  reader.restore(ema_pieces(n));
}

void restore(const CheckpointReader& reader, CheckpointParts& parts, const Peers& peers) {
  for (const Network& n : networks(parts)) restore(reader, n);
  const CheckpointInfo& info = reader.info();
  parts.extra = info.extra;
  if (parts.ema) parts.ema->set_updates(info.ema_updates.value_or(0));
  for (const auto& [name, other] : parts.others)
    if (other.ema) {
      auto updates = parts.extra.extract(kUpdates + name);
      other.ema->set_updates(updates ? std::stoll(updates.mapped()) : 0);
    }
  // A rank that the saved run did not have goes on with its own seed.
  RngState random = info.rng.at(0);
  if (size_t(peers.rank) < info.rng.size())
    random = info.rng[size_t(peers.rank)];
  else
    random.seed = rng::state().seed;
  rng::set_state(random);
}

// Of the DONE file and of every size()-th file from the rank()-th on.
std::string damage_seen_by(const Peers& peers, const fs::path& folder) {
  if (!fs::exists(folder / "DONE")) return "it has no DONE file: it was not written to the end";
  auto files = checkpoint::parse_done(read_file((folder / "DONE").string()));
  if (!files) return "its DONE file is damaged";
  int i = 0;
  for (const auto& [name, expected] : *files) {
    if (i++ % peers.size != peers.rank) continue;
    if (is_git_lfs_pointer((folder / name).string())) return name + " is a Git LFS pointer: run `git lfs pull`";
    auto sum = checkpoint::sum_file((folder / name).string());
    if (!sum) return name + " is missing or cannot be read";
    if (sum->bytes != expected.bytes)
      return name + " has " + std::to_string(sum->bytes) + " bytes instead of " + std::to_string(expected.bytes);
    if (sum->crc != expected.crc) return name + " does not match its checksum";
  }
  return "";
}

std::string passing_over(const std::string& folder, const std::string& why) {
  return detail::concat("passing over the damaged checkpoint ", folder, ": ", why);
}

}  // namespace

Checkpoints::Checkpoints(std::string run_dir, int64_t keep, Peers peers, SaveFrom save_from, double mb_per_second)
    : dir_(std::move(run_dir) + "/checkpoints"),
      keep_(keep),
      peers_(std::move(peers)),
      save_from_(save_from),
      mb_per_second_(mb_per_second) {}

Checkpoints::~Checkpoints() {
  hurry_ = std::uncaught_exceptions() > 0;
  try {
    collect();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "xylem: %s\n", e.what());
    if (hurry_) snapshot_->leave();
  }
}

std::vector<std::string> Checkpoints::gather(const std::string& mine) const {
  return peers_.size > 1 ? peers_.gather(mine) : std::vector{mine};
}

std::string Checkpoints::path(int64_t step) const { return dir_ + "/" + checkpoint::folder_name(step); }
std::vector<int64_t> Checkpoints::steps() const { return checkpoint::list_steps(dir_); }

void Checkpoints::save(int64_t step, const CheckpointParts& parts) {
  auto begin = Clock::now();
  collect();
  double waited = seconds_since(begin);
  if (attempt_.empty()) {
    attempt_ = gather(std::to_string(::getpid()) + "_" + std::to_string(Clock::now().time_since_epoch().count()))[0];
    if (peers_.rank == 0) checkpoint::remove_leftovers(dir_, attempt_);
    snapshot_ = std::make_unique<checkpoint::Snapshot>(
        save_from_ == SaveFrom::shared_memory ? checkpoint::snapshot_file(attempt_, peers_.rank) : "");
  }
  for (const Network& n : networks(parts))  // what is saved is what goes on
    if (n.parts.optimizer) n.parts.optimizer->params().parallel().broadcast_state();
  checkpoint::Job job{.dir = dir_,
                      .attempt = attempt_,
                      .step = step,
                      .keep = keep_,
                      .mb_per_second = mb_per_second_,
                      .rank = peers_.rank,
                      .size = peers_.size,
                      .pieces = share_of(all_pieces(parts), peers_.rank, peers_.size),
                      .random = rng::state(),
                      .extra = parts.extra};
  if (parts.ema) job.ema_updates = parts.ema->updates();
  for (const auto& [name, other] : parts.others)
    if (other.ema) job.extra[kUpdates + name] = std::to_string(other.ema->updates());
  snapshot_->take(job);
  checkpoint::begin(job);
  double copied = seconds_since(begin) - waited;
  writing_ = std::async(std::launch::async, [this, waited, copied, job = std::move(job)] {
    auto start = Clock::now();
    snapshot_->seal();
    Saved saved{.step = job.step, .bytes = checkpoint::write(job, hurry_), .waited = waited, .copied = copied};
    saved.seconds = seconds_since(start);
    return saved;
  });
}

void Checkpoints::collect() {
  if (writing_.valid()) unreported_ = writing_.get();
}

std::optional<Checkpoints::Saved> Checkpoints::saved() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) collect();
  return std::exchange(unreported_, {});
}

std::optional<Checkpoints::Saved> Checkpoints::finish() {
  collect();
  gather("");  // rank 0 has renamed the folder
  return std::exchange(unreported_, {});
}

std::string Checkpoints::Saved::str() const {
  char text[160];
  std::snprintf(text, sizeof text, "checkpoint %lld: %s in %.2g s behind the training, which waited %.2g s",
                static_cast<long long>(step), human_bytes(double(bytes)).c_str(), seconds, waited + copied);
  return text;
}

std::string Checkpoints::damage(const std::string& folder) { return damage_seen_by({}, folder); }

std::optional<int64_t> Checkpoints::resume(CheckpointParts& parts, std::vector<std::string>* notes) {
  finish();
  for (const std::string& note : checkpoint::recover(dir_, peers_))
    if (notes) notes->push_back(note);
  std::string list;
  for (int64_t step : steps()) list = std::to_string(step) + " " + list;
  std::istringstream newest_first(gather(list)[0]);
  std::string damaged;
  for (int64_t step; newest_first >> step;) {
    std::string why;
    for (const std::string& seen : gather(damage_seen_by(peers_, path(step))))
      if (why.empty()) why = seen;
    if (!why.empty()) {
      if (notes) notes->push_back(passing_over(path(step), why));
      damaged += "\n    " + path(step) + ": " + why;
      continue;
    }
    try {
      CheckpointReader reader(path(step));
      restore(reader, parts, peers_);
      return reader.info().step;
    } catch (const Error& e) {
      XY_FAIL("cannot resume from '", path(step), "': ", e.message());
    }
  }
  XY_CHECK(damaged.empty(), "every checkpoint of the run is damaged:", damaged,
           "\nput back a copy of one, or start over: --fresh moves this run aside");
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
