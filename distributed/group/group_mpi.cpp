// SPDX-License-Identifier: Apache-2.0
// CPU tensors over MPI. One thread of the process runs all collectives, one after the other in the order of the calls,
// while the caller goes on; messages between two ranks (send, receive) are posted in that order too and finish on their
// own. The thread polls and sleeps instead of spinning, so that ranks may share cores.
#define OMPI_SKIP_MPICXX  // the C interface alone
#include <mpi.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

#include "distributed/group/control.h"
#include "distributed/group/transport.h"
#include "distributed/world/launcher.h"

namespace xylem {
namespace {

void check_mpi(int status, const char* call, std::source_location where = std::source_location::current()) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, kind = 0;
  MPI_Error_string(status, text, &length);
  MPI_Error_class(status, &kind);
  detail::fail(detail::concat("MPI: ", std::string(text, text + length), " in ", call), where,
               kind == MPI_ERR_TRUNCATE ? "the ranks of this group called collectives of different sizes" : "");
}
#define XY_MPI(call) check_mpi((call), #call)

// Waits politely: first yields the core, then sleeps.
class Patience {
 public:
  void pause() {
    if (collectives::aborted()) XY_FAIL("the collective was aborted: ", collectives::abort_reason());
    if (++tries_ < 64) {
      sched_yield();
      return;
    }
    timespec t{0, std::min<long>(200'000, 10'000L * (tries_ - 63))};
    nanosleep(&t, nullptr);
  }
  void reset() { tries_ = 0; }

 private:
  int tries_ = 0;
};

void wait(MPI_Request& request) {
  Patience patience;
  for (int done = 0;;) {
    XY_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done) return;
    patience.pause();
  }
}

// ---- the communication thread
// ----------------------------------------------------------------------------------------

struct Job {
  std::function<void()> run;                             // a collective, start to end; or posts messages
  std::function<bool()> finished = [] { return true; };  // whether those have arrived
  Record record;
  std::exception_ptr error;
  std::atomic<bool> done{false};
};

class Engine {
 public:
  static Engine& get() {
    static Engine& engine = *new Engine;  // its thread outlives the static objects; stop() ends it
    return engine;
  }
  std::shared_ptr<Job> submit(std::shared_ptr<Job> job) {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    queue_.push_back(job);
    changed_.notify_all();
    return job;
  }
  void wait(Job& job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.done.load(); });
  }
  // False if something was still under way.
  bool stop() {
    {
      std::lock_guard lock(mutex_);
      if (!thread_.joinable()) return true;
      if (!queue_.empty() || busy_ || !posted_.empty()) {
        thread_.detach();
        return false;
      }
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
    return true;
  }
  // Called by the running collective when it has to wait.
  void pause() {
    if (progress_posted()) patience_.reset();
    patience_.pause();
  }
  void moved() { patience_.reset(); }
  char* scratch(int64_t bytes) {
    if (size_t(bytes) > scratch_size_) {
      scratch_.reset();
      scratch_.reset(new char[size_t(bytes)]);
      scratch_size_ = size_t(bytes);
    }
    return scratch_.get();
  }

 private:
  void loop() {
    prctl(PR_SET_NAME, "xylem-comm");
    prctl(PR_SET_TIMERSLACK, 1000UL);  // short sleeps are short
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        if (posted_.empty()) changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (!queue_.empty()) {
          job = std::move(queue_.front());
          queue_.pop_front();
          busy_ = true;
        } else if (stop_) {
          return;
        }
      }
      patience_.reset();
      if (job) {
        start(job);
      } else {
        while (!posted_.empty() && queue_empty()) try {
            pause();
          } catch (...) {
            fail_posted();
          }
      }
    }
  }
  bool queue_empty() {
    std::lock_guard lock(mutex_);
    return queue_.empty();
  }
  void start(const std::shared_ptr<Job>& job) {
    job->record.started();
    try {
      if (collectives::aborted()) XY_FAIL("the collective was aborted: ", collectives::abort_reason());
      job->run();
      if (!job->finished()) {
        std::lock_guard lock(mutex_);
        posted_.push_back(job);
        busy_ = false;
        return;
      }
    } catch (...) {
      job->error = std::current_exception();
    }
    complete(*job, false);
  }
  void complete(Job& job, bool busy) {
    if (!job.error) job.record.finished();
    std::lock_guard lock(mutex_);
    busy_ = busy;
    job.done = true;
    changed_.notify_all();
  }
  bool progress_posted() {
    bool any = false;
    for (size_t i = 0; i < posted_.size();) {
      std::shared_ptr<Job> job = posted_[i];
      bool done = true;
      try {
        done = job->finished();
      } catch (...) {
        job->error = std::current_exception();
      }
      if (!done) {
        ++i;
        continue;
      }
      any = true;
      {
        std::lock_guard lock(mutex_);
        posted_.erase(posted_.begin() + long(i));
      }
      complete(*job, busy_);
    }
    return any;
  }
  void fail_posted() {
    std::vector<std::shared_ptr<Job>> jobs;
    {
      std::lock_guard lock(mutex_);
      jobs.swap(posted_);
    }
    for (auto& job : jobs) job->error = std::current_exception(), complete(*job, busy_);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::vector<std::shared_ptr<Job>> posted_;  // changed by the thread alone, under the lock
  bool busy_ = false, stop_ = false;
  Patience patience_;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_size_ = 0;
};

class MpiWork final : public Work::State {
 public:
  MpiWork(std::shared_ptr<Job> job, Tensors tensors)
      : job_(std::move(job)), tensors_(std::make_unique<Tensors>(std::move(tensors))) {}
  ~MpiWork() override {
    // After an error MPI may still write to the tensors: they stay for good.
    if (job_->error) static_cast<void>(tensors_.release());
  }
  void wait() override {
    Engine::get().wait(*job_);
    if (job_->error) std::rethrow_exception(job_->error);
  }
  bool done() override { return job_->done; }

 private:
  std::shared_ptr<Job> job_;
  std::unique_ptr<Tensors> tensors_;
};

// ---- backend
// -----------------------------------------------------------------------------------------------------------

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &size_);
  }
  MPI_Comm comm() const { return comm_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Message send(const void* data, int64_t bytes, int to, int tag) override {
    MPI_Request request;
    XY_MPI(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &request));
    return pack(request);
  }
  Message receive(void* data, int64_t bytes, int from, int tag) override {
    MPI_Request request;
    XY_MPI(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &request));
    return pack(request);
  }
  bool finished(Message& message) override {
    if (!message) return true;
    MPI_Request request;
    std::memcpy(&request, &message, sizeof(MPI_Request));
    int done = 0;
    XY_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (!done) return false;
    message = nullptr;
    Engine::get().moved();
    return true;
  }
  void pause() override { Engine::get().pause(); }
  char* scratch(int64_t bytes) override { return Engine::get().scratch(bytes); }

 private:
  static Message pack(MPI_Request request) {
    static_assert(sizeof(MPI_Request) <= sizeof(Message));
    Message message = nullptr;
    std::memcpy(&message, &request, sizeof(MPI_Request));
    return message;
  }
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(MPI_Comm comm) : transport_(std::make_shared<MpiTransport>(comm)) {}

  std::string algorithm(const Call& call) const override { return algorithm_of(call, transport_->size()); }

  Work launch(Call call, Record record) override {
    auto job = std::make_shared<Job>();
    job->record = record;
    Tensors tensors{call.output, call.input};
    if (call.kind < Call::send) {
      std::string name = algorithm(call);
      job->run = [t = transport_, call = std::move(call), name] { run_collective(*t, call, name); };
    } else {
      auto messages = std::make_shared<Messages>(*transport_);
      job->run = [t = transport_, call = std::move(call), messages] {
        if (call.from >= 0) messages->receive(call.output.raw(), int64_t(call.output.nbytes()), call.from, kPeerTag);
        if (call.to >= 0) messages->send(call.input.raw(), int64_t(call.input.nbytes()), call.to, kPeerTag);
      };
      job->finished = [messages] { return messages->finished(); };
    }
    return Work(std::make_unique<MpiWork>(Engine::get().submit(std::move(job)), std::move(tensors)));
  }

 private:
  std::shared_ptr<MpiTransport> transport_;
};

class MpiHostChannel final : public HostChannel {
 public:
  explicit MpiHostChannel(MPI_Comm comm) : comm_(comm) { MPI_Comm_size(comm, &size_); }
  MPI_Comm comm() const { return comm_; }

  std::vector<std::string> gather(const std::string& mine) override {
    std::vector<int64_t> lengths(size_);
    int64_t length = int64_t(mine.size()), total = 0;
    MPI_Request request;
    XY_MPI(MPI_Iallgather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, comm_, &request));
    wait(request);
    std::vector<int> counts(size_), offsets(size_);
    for (int r = 0; r < size_; ++r) {
      offsets[r] = static_cast<int>(total);
      counts[r] = static_cast<int>(lengths[r]);
      total += lengths[r];
    }
    XY_CHECK(total <= INT32_MAX, "gather_strings: ", total, " bytes are more than the 2 GiB that host values may have");
    std::string all(size_t(total), '\0');
    XY_MPI(MPI_Iallgatherv(mine.data(), static_cast<int>(length), MPI_BYTE, all.data(), counts.data(), offsets.data(),
                           MPI_BYTE, comm_, &request));
    wait(request);
    std::vector<std::string> parts;
    for (int r = 0; r < size_; ++r) parts.push_back(all.substr(size_t(offsets[r]), size_t(counts[r])));
    return parts;
  }
  std::string broadcast(const std::string& value, int root) override {
    int64_t length = int64_t(value.size());
    MPI_Request request;
    XY_MPI(MPI_Ibcast(&length, 1, MPI_INT64_T, root, comm_, &request));
    wait(request);
    XY_CHECK(length <= INT32_MAX, "broadcast_string: ", length, " bytes are more than the 2 GiB that it may have");
    std::string text = value;
    text.resize(size_t(length));
    XY_MPI(MPI_Ibcast(text.data(), static_cast<int>(length), MPI_BYTE, root, comm_, &request));
    wait(request);
    return text;
  }
  void barrier() override {
    MPI_Request request;
    XY_MPI(MPI_Ibarrier(comm_, &request));
    wait(request);
  }

 private:
  MPI_Comm comm_;
  int size_ = 1;
};

// Communicators are never freed: MPI_Comm_free is collective, and ranks drop their groups when they like.
void connect(Group::Impl& group, MPI_Comm data) {
  MPI_Comm host;
  XY_MPI(MPI_Comm_dup(data, &host));
  for (MPI_Comm comm : {data, host}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  group.host = std::make_unique<MpiHostChannel>(host);
  group.cpu = std::make_unique<MpiBackend>(data);
}

}  // namespace

namespace detail {

void connect_world(Group::Impl& world) {
  MPI_Comm data;
  before_finalize(collectives::stop);
  XY_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &data));
  connect(world, data);
}

void connect_split(Group::Impl& child, Group::Impl& parent, int color, int key) {
  MPI_Comm data, from = static_cast<MpiHostChannel&>(*parent.host).comm();
  parent.host->barrier();  // MPI spins in what follows
  XY_MPI(MPI_Comm_split(from, color < 0 ? MPI_UNDEFINED : color, key, &data));
  if (color < 0) return;
  if (child.size() == 1)
    MPI_Comm_free(&data);
  else
    connect(child, data);
}

bool stop_mpi() { return Engine::get().stop(); }

}  // namespace detail
}  // namespace xylem
