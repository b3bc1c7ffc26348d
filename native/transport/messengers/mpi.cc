#include "transport/messengers/mpi.h"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/threads/signals_blocked.h"
#include "transport/messengers/mpi_progress.h"
#include "transport/messengers/pmi.h"

namespace hvdtune {
namespace {

constexpr int kSuccess = 0;
constexpr int kThreadSerialized = 2;
constexpr int kThreadMultiple = 3;
constexpr int kUndefined = -32766;
// Only with MPI_THREAD_MULTIPLE. Otherwise the program may call MPI as soon as hvdtune is shut
// down.
constexpr Nanos kLinger = 2 * kSecond;
constexpr std::chrono::seconds kFinalize{3};
constexpr int kUnusedTag = 32767;  // the largest that every MPI has
constexpr const char* kThreadLevels[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                         "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::kInvalidArgument, text);
}

/// A loaded library; looking up a name that it does not have throws.
class Library {
 public:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool has(const char* name) const { return dlsym(handle_, name) != nullptr; }
  [[nodiscard]] void* address(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) refuse(path_ + " is not a usable MPI library: it has no " + name);
    return found;
  }
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address(name));
  }

 private:
  void* handle_;
  std::string path_;
};

/// Open MPI's binary interface: handles are addresses of objects in the library.
struct OpenMpiAbi {
  using Handle = void*;
  explicit OpenMpiAbi(const Library& library)
      : world(library.address("ompi_mpi_comm_world")),
        byte(library.address("ompi_mpi_byte")),
        errors_return(library.address("ompi_mpi_errors_return")),
        no_request(library.address("ompi_request_null")) {}
  Handle world, byte, errors_return, no_request;
  void* statuses_ignore = nullptr;
};

/// MPICH's, which Intel MPI, MVAPICH and Cray MPICH share: handles are numbers.
struct MpichAbi {
  using Handle = int;
  explicit MpichAbi(const Library&) {}
  Handle world = 0x44000000;
  Handle byte = 0x4c00010d;
  Handle errors_return = 0x54000001;
  Handle no_request = 0x2c000000;
  void* statuses_ignore = reinterpret_cast<void*>(std::uintptr_t{1});
};

/// The functions that are called, all of MPI-3.0.
template <typename Abi>
struct Calls {
  using Handle = typename Abi::Handle;

  explicit Calls(const Library& library) : abi(library) {
    library.find("MPI_Initialized", initialized);
    library.find("MPI_Finalized", finalized);
    library.find("MPI_Init_thread", init_thread);
    library.find("MPI_Query_thread", query_thread);
    library.find("MPI_Finalize", finalize);
    library.find("MPI_Get_library_version", get_library_version);
    library.find("MPI_Error_string", error_string);
    library.find("MPI_Comm_rank", comm_rank);
    library.find("MPI_Comm_size", comm_size);
    library.find("MPI_Comm_group", comm_group);
    library.find("MPI_Group_incl", group_incl);
    library.find("MPI_Group_free", group_free);
    library.find("MPI_Comm_create_group", comm_create_group);
    library.find("MPI_Comm_set_errhandler", comm_set_errhandler);
    library.find("MPI_Isend", isend);
    library.find("MPI_Irecv", irecv);
    library.find("MPI_Testsome", testsome);
    library.find("MPI_Iprobe", iprobe);
    library.find("MPI_Alltoall", alltoall);
  }

  /// Throws the error if the call failed.
  void check(int result, const char* name) const {
    if (result == kSuccess) return;
    char text[8192] = "";
    int length = 0;
    error_string(result, text, &length);
    throw Error(ErrorKind::kAborted, std::string(name) + " failed: " + text);
  }

  Abi abi;
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*query_thread)(int*);
  int (*finalize)();
  int (*get_library_version)(char*, int*);
  int (*error_string)(int, char*, int*);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*comm_group)(Handle, Handle*);
  int (*group_incl)(Handle, int, const int*, Handle*);
  int (*group_free)(Handle*);
  int (*comm_create_group)(Handle, Handle, int, Handle*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*testsome)(int, Handle*, int*, int*, void*);
  int (*iprobe)(int, int, Handle, int*, void*);
  int (*alltoall)(const void*, int, Handle, void*, int, Handle, Handle);
};

template <typename Abi>
class JobOf;

template <typename Abi>
class MessengerOf final : public Messenger {
 public:
  MessengerOf(const Calls<Abi>& calls, JobOf<Abi>& job, std::vector<int> ranks, int tag)
      : calls_(calls), job_(job), ranks_(std::move(ranks)), tag_(tag) {
    job_.progress().enter();
  }
  ~MessengerOf() override { job_.progress().leave(); }
  MessengerOf(const MessengerOf&) = delete;
  MessengerOf& operator=(const MessengerOf&) = delete;

  void send(std::size_t batch, std::size_t member, const std::byte* data,
            std::size_t bytes) override {
    const auto alone = job_.progress().calling();
    calls_.check(calls_.isend(data, static_cast<int>(bytes), calls_.abi.byte, ranks_[member], tag_,
                              job_.communicator(), add(batch, member, false)),
                 "MPI_Isend");
  }

  void receive(std::size_t batch, std::size_t member, std::byte* data, std::size_t bytes) override {
    const auto alone = job_.progress().calling();
    calls_.check(calls_.irecv(data, static_cast<int>(bytes), calls_.abi.byte, ranks_[member], tag_,
                              job_.communicator(), add(batch, member, true)),
                 "MPI_Irecv");
  }

  bool test(std::size_t batch) override {
    Batch& tested = batches_[batch];
    if (tested.requests.empty()) return true;
    const auto count = static_cast<int>(tested.requests.size());
    tested.indices.resize(tested.requests.size());
    int done = 0;
    const auto alone = job_.progress().calling();
    calls_.check(calls_.testsome(count, tested.requests.data(), &done, tested.indices.data(),
                                 calls_.abi.statuses_ignore),
                 "MPI_Testsome");
    if (done == kUndefined) done = static_cast<int>(tested.left);
    if (done > 0) pause_ = kLeastPause;
    tested.left -= static_cast<std::size_t>(done);
    if (tested.left > 0) return false;
    tested.requests.clear();
    tested.others.clear();
    return true;
  }

  /// MPI moves messages only while it is called: the pauses are short.
  void doze() override {
    const timespec pause{0, static_cast<long>(pause_)};
    nanosleep(&pause, nullptr);
    pause_ = std::min(pause_ * 2, kMostPause);
  }

  [[nodiscard]] std::vector<std::size_t> missing(std::size_t batch) const override {
    const Batch& asked = batches_[batch];
    std::vector<std::size_t> found;
    for (const bool received : {true, false}) {
      for (std::size_t i = 0; i < asked.requests.size(); ++i) {
        const auto [member, receives] = asked.others[i];
        if (receives != received || asked.requests[i] == calls_.abi.no_request) continue;
        if (std::find(found.begin(), found.end(), member) == found.end()) found.push_back(member);
      }
      if (!found.empty()) break;
    }
    return found;
  }

  bool abandon(bool failed) override {
    const bool clean = std::all_of(batches_.begin(), batches_.end(),
                                   [](const Batch& batch) { return batch.requests.empty(); });
    const auto alone = job_.progress().calling();
    if (failed || !clean) job_.spoil();
    return clean;
  }

 private:
  static constexpr Nanos kLeastPause = 20 * kMicrosecond;
  static constexpr Nanos kMostPause = kMillisecond;

  struct Batch {
    std::vector<typename Abi::Handle> requests;
    std::vector<std::pair<std::size_t, bool>> others;  // member, and whether it sends
    std::vector<int> indices;
    std::size_t left = 0;
  };

  typename Abi::Handle* add(std::size_t batch, std::size_t member, bool receives) {
    Batch& target = batches_[batch];
    target.left = target.requests.empty() ? 1 : target.left + 1;
    target.requests.push_back(calls_.abi.no_request);
    target.others.emplace_back(member, receives);
    return &target.requests.back();
  }

  const Calls<Abi>& calls_;
  JobOf<Abi>& job_;
  std::vector<int> ranks_;  // of the members, in the job
  int tag_;
  std::array<Batch, kBatches> batches_;
  Nanos pause_ = kLeastPause;
};

template <typename Abi>
class JobOf final : public MpiJob {
 public:
  /// Collective over the processes.
  JobOf(const Calls<Abi>& calls, const std::vector<int>& world_ranks, bool multiple)
      : calls_(calls), progress_([this] { return advance(); }, multiple ? kLinger : 0) {
    typename Abi::Handle world{};
    typename Abi::Handle mine{};
    calls.check(calls.comm_group(calls.abi.world, &world), "MPI_Comm_group");
    calls.check(
        calls.group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &mine),
        "MPI_Group_incl");
    calls.check(calls.comm_create_group(calls.abi.world, mine, 0, &communicator_),
                "MPI_Comm_create_group");
    calls.check(calls.comm_set_errhandler(communicator_, calls.abi.errors_return),
                "MPI_Comm_set_errhandler");
    calls.group_free(&mine);
    calls.group_free(&world);
    int rank = 0;
    int size = 1;
    calls.comm_rank(communicator_, &rank);
    calls.comm_size(communicator_, &size);
    next_ = (rank + 1) % size;
  }

  std::unique_ptr<Messenger> messenger(std::vector<int> ranks, int tag) override {
    return std::make_unique<MessengerOf<Abi>>(calls_, *this, std::move(ranks), tag);
  }

  [[nodiscard]] typename Abi::Handle communicator() const { return communicator_; }
  MpiProgress& progress() { return progress_; }
  /// Marks the job as unusable: messages were given up, which could be mistaken for later ones, or
  /// a process has ended.
  void spoil() { spoilt_ = true; }
  [[nodiscard]] bool spoilt() const { return spoilt_; }

 private:
  /// Asks for a message that never comes.
  bool advance() {
    int is = 0;
    calls_.finalized(&is);
    if (is != 0 || spoilt_) return false;
    return calls_.iprobe(next_, kUnusedTag, communicator_, &is, calls_.abi.statuses_ignore) ==
           kSuccess;
  }

  const Calls<Abi>& calls_;
  typename Abi::Handle communicator_{};
  int next_ = 0;  // some other process
  bool spoilt_ = false;
  MpiProgress progress_;
};

template <typename Abi>
class MpiOf final : public Mpi {
 public:
  explicit MpiOf(const Library& library) : calls_(library), path_(library.path()) {}

  void start(bool multiple, bool between_hosts) override {
    int is = 0;
    calls_.finalized(&is);
    if (is != 0) {
      refuse("MPI was finalised in this process; it cannot be started again");
    }
    int provided = 0;
    calls_.initialized(&is);
    if (is != 0) {
      calls_.check(calls_.query_thread(&provided), "MPI_Query_thread");
    } else {
      calls_.check(calls_.init_thread(nullptr, nullptr,
                                      multiple ? kThreadMultiple : kThreadSerialized, &provided),
                   "MPI_Init_thread");
      ours_ = true;
    }
    if (provided < kThreadSerialized) {
      refuse(std::string(is != 0 ? "MPI was initialised in this process with "
                                 : path_ + " was initialised and offers only ") +
             kThreadLevels[provided] +
             ", but the engine calls it from more than one thread: MPI_THREAD_SERIALIZED or "
             "MPI_THREAD_MULTIPLE is needed (mpi4py.rc.thread_level)");
    }
    multiple_ = provided == kThreadMultiple;
    hangs_at_end_ = between_hosts && hangs_at_end();
    calls_.check(calls_.comm_rank(calls_.abi.world, &rank_), "MPI_Comm_rank");
    calls_.check(calls_.comm_size(calls_.abi.world, &size_), "MPI_Comm_size");
  }

  [[nodiscard]] int world_rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return size_; }
  [[nodiscard]] bool threads_multiple() const override { return multiple_; }

  [[nodiscard]] std::string version() const override {
    std::string line = about();
    line.resize(std::min(line.size(), line.find_first_of("\n\r")));
    return line;
  }

  [[nodiscard]] bool has_job(const std::vector<int>& world_ranks) const override {
    const auto known = jobs_.find(world_ranks);
    return known != jobs_.end() && !known->second->spoilt();
  }

  std::shared_ptr<MpiJob> job(const std::vector<int>& world_ranks, bool again) override {
    auto& known = jobs_[world_ranks];
    if (!again) {
      spoilt_ = spoilt_ || known;
      known = std::make_shared<JobOf<Abi>>(calls_, world_ranks, multiple_);
    }
    return known;
  }

  /// See Mpi::finish.
  void end(bool finalizes, int hydra) {
    int initialized = 0;
    int finalized = 0;
    calls_.initialized(&initialized);
    calls_.finalized(&finalized);
    for (const auto& [ranks, job] : jobs_) {
      job->progress().rest();
      spoilt_ = spoilt_ || job->spoilt();
    }
    if (!finalizes || !ours_ || initialized == 0 || finalized != 0 || spoilt_) return;
    if (hangs_at_end_) {
      end_together(hydra);
    } else {
      calls_.finalize();
    }
  }

 private:
  /// The library's full description of itself, several lines.
  [[nodiscard]] std::string about() const {
    char text[8192] = "";
    int length = 0;
    calls_.get_library_version(text, &length);
    return text;
  }

  /// MPICH before 4.2: with UCX, a process that has closed its connections waits in MPI_Finalize
  /// and moves no messages, while others wait for its answer (pmodels/mpich, pull request 6596). Up
  /// to half of all jobs on several hosts hang this way.
  [[nodiscard]] bool hangs_at_end() const {
    int major = 0;
    int minor = 0;
    return std::sscanf(version().c_str(), "MPICH Version: %d.%d", &major, &minor) == 2 &&
           (major < 4 || (major == 4 && minor < 2));
  }

  /// If a process ends without MPI_Finalize, Hydra kills all others of its host. So a process must
  /// not end before all have reached this point and have nothing left to do. Hydra treats an end as
  /// normal only after the messages that MPI_Finalize would have sent. This function sends them
  /// itself if the library also speaks PMI version 1, which it does unless it was configured
  /// otherwise.
  void end_together(int hydra) const {
    // Any explicit choice of PMI at its configuration is assumed to be another version. All
    // processes decide the same.
    const bool speaks = hydra >= 0 && about().find("--with-pmi") == std::string::npos;
    const std::vector<char> sent(static_cast<std::size_t>(size_), speaks ? 1 : 0);
    std::vector<char> received(sent.size());
    calls_.alltoall(sent.data(), 1, calls_.abi.byte, received.data(), 1, calls_.abi.byte,
                    calls_.abi.world);
    if (!std::ranges::all_of(received, [](char one) { return one == 1; })) {
      finalize_in_time();
      return;
    }
    Pmi launcher(hydra);
    const auto advance = [this] {
      int is = 0;
      calls_.iprobe((rank_ + 1) % size_, kUnusedTag, calls_.abi.world, &is,
                    calls_.abi.statuses_ignore);
    };
    if (launcher.barrier(advance) && launcher.leave()) return;
    HVD_LOG_RANK(kWarning, rank_)
        << "the mpirun of " << version()
        << " did not answer at this process's end; it may report that the job has failed";
  }

  /// For launchers other than Hydra, or another PMI version. Other launchers care less how a
  /// process ends.
  void finalize_in_time() const {
    const auto ended = std::make_shared<std::promise<void>>();
    const std::future<void> end = ended->get_future();
    const SignalsBlocked signals;
    std::thread([finalize = calls_.finalize, ended] {
      finalize();
      ended->set_value();
    }).detach();
    if (end.wait_for(kFinalize) == std::future_status::ready) return;
    HVD_LOG_RANK(kInfo, rank_)
        << "MPI_Finalize of " << version()
        << " did not return, a known fault before 4.2; the process ends without it";
    // Destructors of libraries that the thread is still in must not run.
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          _exit(status);
        },
        nullptr);
  }

  Calls<Abi> calls_;
  std::string path_;
  bool ours_ = false;
  bool multiple_ = false;
  bool spoilt_ = false;
  bool hangs_at_end_ = false;
  int rank_ = 0;
  int size_ = 1;
  std::map<std::vector<int>, std::shared_ptr<JobOf<Abi>>> jobs_;
};

/// The process's MPI. Never destroyed: messages that were given up may still need it.
struct Loaded {
  std::mutex mutex;
  std::string path;
  Mpi* mpi = nullptr;
  void (*end)(Mpi&, bool finalizes, int hydra) = nullptr;
};

Loaded& loaded() {
  static auto* const state = new Loaded;
  return *state;
}

template <typename Abi>
void take(Loaded& state, const Library& library) {
  state.mpi = new MpiOf<Abi>(library);
  state.end = [](Mpi& mpi, bool finalizes, int hydra) {
    static_cast<MpiOf<Abi>&>(mpi).end(finalizes, hydra);
  };
}

}  // namespace

Mpi& Mpi::load(const std::string& path) {
  Loaded& state = loaded();
  const std::lock_guard lock(state.mutex);
  if (state.mpi != nullptr) {
    if (state.path == path) return *state.mpi;
    refuse("this process already uses the MPI of " + state.path + "; it cannot use " + path +
           " as well");
  }
  // Global, because Open MPI's plugins look for its symbols. Never closed: MPI leaves threads.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) refuse("the MPI library cannot be loaded: " + std::string(dlerror()));
  const Library library(handle, path);
  if (library.has("ompi_mpi_comm_world")) {
    take<OpenMpiAbi>(state, library);
  } else if (library.has("MPIX_Comm_failure_ack") || library.has("MPIR_Err_return_comm") ||
             library.has("MPIX_Query_cuda_support")) {
    take<MpichAbi>(state, library);
  } else {
    refuse(path +
           " is not a known MPI: hvdtune knows Open MPI and those with MPICH's binary interface "
           "(MPICH, Intel MPI, MVAPICH, Cray MPICH)");
  }
  state.path = path;
  return *state.mpi;
}

Mpi* Mpi::current() {
  Loaded& state = loaded();
  const std::lock_guard lock(state.mutex);
  return state.mpi;
}

void Mpi::finish(bool finalizes, int hydra) {
  Loaded& state = loaded();
  const std::lock_guard lock(state.mutex);
  if (state.mpi != nullptr) state.end(*state.mpi, finalizes, hydra);
}

}  // namespace hvdtune
