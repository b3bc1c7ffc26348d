#include "nccl_meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <set>

namespace fake_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHeader = (sizeof(Meeting::Shared) + kPage - 1) / kPage * kPage;
constexpr std::size_t kChannels = kHeader + kMostMembers * kWindowBytes;
constexpr std::size_t kBytes = kChannels + kMostMembers * kMostMembers * sizeof(Channel);

/// What the 128 bytes of a unique id are.
struct Id {
  char magic[16];
  std::uint64_t nonce;
  int pid;
  int fd;
};

constexpr char kMagic[16] = "fake nccl";

Id id_of(const NcclUniqueId& id) {
  Id known{};
  std::memcpy(&known, &id, sizeof known);
  return known;
}

/// Which descriptor is an id's is known to ranks that are threads by the id alone: the order of its
/// uses is nothing that a sanitizer could see.
std::mutex& descriptors() {
  static std::mutex mutex;
  return mutex;
}

/// The ids whose descriptors this process has open. Several ranks may be threads of it.
std::set<std::uint64_t>& kept() {
  static auto* const nonces = new std::set<std::uint64_t>;
  return *nonces;
}

Meeting::Shared* map(int fd) {
  void* const place =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return place == MAP_FAILED ? nullptr : static_cast<Meeting::Shared*>(place);
}

}  // namespace

NcclUniqueId Meeting::create() {
  Id id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  const std::lock_guard lock(descriptors());
  std::random_device random;
  id.nonce = std::uint64_t{random()} << 32 | random();
  id.pid = getpid();
  id.fd = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (id.fd < 0 || ftruncate(id.fd, kBytes) != 0) std::abort();
  kept().insert(id.nonce);
  Shared* const shared = map(id.fd);
  if (shared == nullptr) std::abort();
  shared->nonce = id.nonce;
  munmap(shared, kBytes);
  NcclUniqueId made{};
  std::memcpy(&made, &id, sizeof id);
  return made;
}

std::shared_ptr<Meeting> Meeting::open(const NcclUniqueId& unique, std::string& problem) {
  const Id id = id_of(unique);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) {
    problem = "not a unique id";
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  Shared* const shared = fd < 0 ? nullptr : map(fd);
  if (fd >= 0) close(fd);
  if (shared == nullptr || shared->nonce != id.nonce) {
    if (shared != nullptr) munmap(shared, kBytes);
    problem = "whoever made the unique id is gone";
    return nullptr;
  }
  return std::shared_ptr<Meeting>(new Meeting(shared));
}

void Meeting::forget(const NcclUniqueId& unique) {
  const Id id = id_of(unique);
  const std::lock_guard lock(descriptors());
  if (id.pid == getpid() && kept().erase(id.nonce) == 1) close(id.fd);
}

Meeting::~Meeting() { munmap(shared_, kBytes); }

std::byte* Meeting::window(int member) const {
  return reinterpret_cast<std::byte*>(shared_) + kHeader +
         static_cast<std::size_t>(member) * kWindowBytes;
}

Channel& Meeting::channel(int from, int to) const {
  const auto number = static_cast<std::size_t>(from) * kMostMembers + static_cast<std::size_t>(to);
  return reinterpret_cast<Channel*>(reinterpret_cast<std::byte*>(shared_) + kChannels)[number];
}

}  // namespace fake_cuda
