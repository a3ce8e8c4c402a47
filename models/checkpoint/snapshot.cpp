// SPDX-License-Identifier: Apache-2.0
#include "models/checkpoint/snapshot.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/autograd/autograd.h"
#include "core/device/page_lock.h"
#include "models/checkpoint/files.h"

namespace xylem::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMagic = 0x31304e5350595821;  // of this layout
constexpr size_t kAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// At the start of the file; the tensors follow, then a description of the job in JSON.
struct Head {
  uint64_t magic;
  uint64_t text_at;
  std::atomic<uint64_t> text_bytes;  // 0: the copies are not whole
};
static_assert(sizeof(Head) <= kAlign && std::atomic<uint64_t>::is_always_lock_free);

// Offsets of the pieces, and of what comes behind them.
std::pair<std::vector<size_t>, size_t> layout(const std::vector<Piece>& pieces) {
  std::vector<size_t> offsets;
  size_t at = kAlign;
  for (const Piece& p : pieces) {
    offsets.push_back(at);
    at += aligned(p.data.nbytes());
  }
  return {offsets, at};
}

Device device_of(const std::vector<Piece>& pieces) {
  for (const Piece& p : pieces)
    if (p.data.is_cuda()) return p.data.device();
  return Device::cpu();
}

std::string describe(const Job& job) {
  Json pieces = Json::array();
  for (const Piece& p : job.pieces)
    pieces.push_back({p.section, p.name, name_of(p.data.dtype()), p.shape.vec(), p.begin, p.count()});
  Json json{{"dir", fs::absolute(job.dir).string()},
            {"attempt", job.attempt},
            {"step", job.step},
            {"keep", job.keep},
            {"rank", job.rank},
            {"size", job.size},
            {"pieces", pieces},
            {"rng", {job.random.seed, job.random.step, job.random.op}},
            {"extra", job.extra}};
  if (job.ema_updates) json["ema_updates"] = *job.ema_updates;
  return json.dump();
}

}  // namespace

// A file, locked and mapped as long as this lives.
struct SharedMemory {
  int fd = -1;
  char* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> page_lock;

  Head& head() const { return *reinterpret_cast<Head*>(data); }
  void map(size_t wanted) {
    void* p = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    XY_CHECK(p != MAP_FAILED, "mmap: ", std::strerror(errno));
    data = static_cast<char*>(p);
    bytes = wanted;
  }
  ~SharedMemory() {
    page_lock.reset();
    if (data) ::munmap(data, bytes);
    if (fd >= 0) ::close(fd);
  }
};

namespace {

// Made under another name, so that no file by its name is without its lock.
std::shared_ptr<SharedMemory> create(const std::string& file, size_t bytes, bool for_gpu) {
  auto memory = std::make_shared<SharedMemory>();
  std::string fresh = file + ".new";
  memory->fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  XY_CHECK(memory->fd >= 0, "cannot make '", fresh, "': ", std::strerror(errno));
  try {
    ::flock(memory->fd, LOCK_EX | LOCK_NB);
    int error = ::posix_fallocate(memory->fd, 0, off_t(bytes));
    XY_CHECK(error == 0, "no room for ", bytes >> 20, " MiB in ", snapshot_folder(), ": ", std::strerror(error));
    memory->map(bytes);
    memory->head().magic = kMagic;
    if (for_gpu) memory->page_lock = page_lock(memory->data, bytes);
    fs::rename(fresh, file);
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
  return memory;
}

std::optional<Job> read_job(const std::shared_ptr<SharedMemory>& memory) {
  if (memory->bytes < sizeof(Head) || memory->head().magic != kMagic) return {};
  size_t text_bytes = memory->head().text_bytes.load(std::memory_order_acquire), text_at = memory->head().text_at;
  if (text_bytes == 0 || text_at > memory->bytes || text_bytes > memory->bytes - text_at) return {};
  Json json = Json::parse(std::string(memory->data + text_at, text_bytes));
  Job job{.dir = json.at("dir"),
          .attempt = json.at("attempt"),
          .step = json.at("step"),
          .keep = json.at("keep"),
          .rank = json.at("rank"),
          .size = json.at("size"),
          .pieces = {},
          .random = {json.at("rng").at(0), json.at("rng").at(1), json.at("rng").at(2)},
          .extra = json.at("extra")};
  if (json.contains("ema_updates")) job.ema_updates = json["ema_updates"].get<int64_t>();
  size_t at = kAlign;
  for (const Json& p : json.at("pieces")) {
    Piece piece{.section = p.at(0),
                .name = p.at(1),
                .shape = Shape(p.at(3).get<std::vector<int64_t>>()),
                .begin = p.at(4),
                .data = {}};
    int64_t count = p.at(5);
    Shape own = piece.begin == 0 && count == piece.shape.numel() ? piece.shape : Shape{count};
    piece.data = from_external(memory->data + at, own, parse_dtype(p.at(2).get<std::string>()), Device::cpu(), memory);
    at += aligned(piece.data.nbytes());
    job.pieces.push_back(std::move(piece));
  }
  XY_CHECK(at <= text_at, "its tensors do not fit");
  return job;
}

}  // namespace

Snapshot::Snapshot(std::string file) : file_(std::move(file)) {}

Snapshot::~Snapshot() {
  if (memory_ && !file_.empty()) ::unlink(file_.c_str());
}

Tensors Snapshot::place_in_file(const Job& job) {
  auto [offsets, end] = layout(job.pieces);
  std::string text = describe(job);
  if (memory_) memory_->head().text_bytes.store(0, std::memory_order_release);
  if (!memory_ || memory_->bytes < end + text.size()) {
    memory_.reset();
    memory_ = create(file_, end + text.size() + 4096, device_of(job.pieces).is_cuda());
  }
  memory_->head().text_at = end;
  std::memcpy(memory_->data + end, text.data(), text.size());
  text_bytes_ = text.size();
  Tensors copies;
  for (size_t i = 0; i < job.pieces.size(); ++i) {
    const Tensor& from = job.pieces[i].data;
    copies.push_back(from_external(memory_->data + offsets[i], from.shape(), from.dtype(), Device::cpu(), memory_));
  }
  return copies;
}

void Snapshot::take(Job& job) {
  NoGrad guard;
  Tensors copies;
  if (!file_.empty()) try {
      copies = place_in_file(job);
    } catch (const std::exception& e) {
      const auto* ours = dynamic_cast<const Error*>(&e);
      std::fprintf(stderr,
                   "xylem: rank %d cannot keep what it saves in shared memory: %s; a checkpoint that is being written "
                   "when the job is killed will be lost\n",
                   job.rank, ours ? ours->message().c_str() : e.what());
      ::unlink(file_.c_str());
      file_.clear();
      memory_.reset();
    }
  if (file_.empty()) {
    copies_.resize(job.pieces.size());
    for (size_t i = 0; i < job.pieces.size(); ++i) {
      const Tensor& from = job.pieces[i].data;
      Tensor& to = copies_[i];
      if (!to || to.shape() != from.shape() || to.dtype() != from.dtype())
        to = from.is_cuda() ? empty_pinned(from.shape(), from.dtype()) : empty(from.shape(), from.dtype());
    }
    copies = copies_;
  }
  // In the order of the training itself, which then need not know of it: optimizers, averages, batch norms and graphs
  // change the state in place. A stream of its own would save a fraction of a step per checkpoint.
  Device device = device_of(job.pieces);
  for (size_t i = 0; i < job.pieces.size(); ++i) {
    copies[i].copy_(job.pieces[i].data, true);
    job.pieces[i].data = copies[i];
  }
  ready_.record(current_stream(device));
  if (!device.is_cuda()) seal();
}

void Snapshot::seal() {
  ready_.synchronize();
  if (memory_) memory_->head().text_bytes.store(text_bytes_, std::memory_order_release);
}

void Snapshot::leave() { memory_.reset(); }

std::string snapshot_folder() {
  const char* given = std::getenv("XY_SNAPSHOT_DIR");
  return given && *given ? given : "/dev/shm";
}

std::string snapshot_file(const std::string& attempt, int rank) {
  return snapshot_folder() + "/xylem_" + attempt + "_" + rank_name(rank);
}

std::optional<LeftSnapshot> LeftSnapshot::open(const std::string& file, double patience) {
  LeftSnapshot left;
  left.file_ = file;
  left.memory_ = std::make_shared<SharedMemory>();
  int fd = left.memory_->fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return {};
  auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= until) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  struct stat now {};
  if (::fstat(fd, &now) != 0 || now.st_nlink == 0) return {};  // removed by who had the lock
  try {
    if (now.st_size > 0) {
      left.memory_->map(size_t(now.st_size));
      left.job_ = read_job(left.memory_);
    }
  } catch (const std::exception&) {  // not one of ours, or of another version
  }
  return left;
}

void LeftSnapshot::remove() const { ::unlink(file_.c_str()); }

}  // namespace xylem::checkpoint
