#include "device/nccl_library.h"

#include <utility>

#include "base/error.h"
#include "device/libraries/shared_library.h"

namespace hvdtune {
namespace {

constexpr const char* kOldestNcclText = "NCCL 2.19";
constexpr int kNcclHasWindows = 22700;

}  // namespace

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::shared_ptr<const NcclLibrary> NcclLibrary::open(const std::string& path) {
  return std::shared_ptr<const NcclLibrary>(new NcclLibrary(path));
}

NcclLibrary::NcclLibrary(const std::string& path) : path_(path) {
  const SharedLibrary library("NCCL", path);
  const auto find = [&](auto*& function, const char* symbol) {
    library.find(function, symbol, kOldestNcclText);
  };
  find(ncclGetVersion, "ncclGetVersion");
  if (ncclGetVersion(&version_) != NcclResult::kSuccess || version_ < kOldestNccl) {
    // Before 2.9 version numbers had another format, and all are smaller.
    throw Error(ErrorKind::kInvalidArgument,
                "NCCL at " + path + " is " +
                    (version_ >= 20900 ? "version " + nccl_version_text(version_) : "too old") +
                    ": hvdtune needs " + kOldestNcclText + " or later");
  }
  find(ncclGetErrorString, "ncclGetErrorString");
  find(ncclGetLastError, "ncclGetLastError");
  find(ncclGetUniqueId, "ncclGetUniqueId");
  find(ncclCommInitRankConfig, "ncclCommInitRankConfig");
  find(ncclCommGetAsyncError, "ncclCommGetAsyncError");
  find(ncclCommFinalize, "ncclCommFinalize");
  find(ncclCommDestroy, "ncclCommDestroy");
  find(ncclCommAbort, "ncclCommAbort");
  find(ncclAllReduce, "ncclAllReduce");
  find(ncclBroadcast, "ncclBroadcast");
  find(ncclAllGather, "ncclAllGather");
  find(ncclReduceScatter, "ncclReduceScatter");
  find(ncclSend, "ncclSend");
  find(ncclRecv, "ncclRecv");
  find(ncclGroupStart, "ncclGroupStart");
  find(ncclGroupEnd, "ncclGroupEnd");
  find(ncclRedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  find(ncclRedOpDestroy, "ncclRedOpDestroy");
  find(ncclMemAlloc, "ncclMemAlloc");
  find(ncclMemFree, "ncclMemFree");
  find(ncclCommRegister, "ncclCommRegister");
  find(ncclCommDeregister, "ncclCommDeregister");
  if (version_ < kNcclHasWindows) return;
  library.find_if_there(ncclCommWindowRegister, "ncclCommWindowRegister");
  library.find_if_there(ncclCommWindowDeregister, "ncclCommWindowDeregister");
  if (ncclCommWindowDeregister == nullptr) ncclCommWindowRegister = nullptr;
}

std::string NcclLibrary::describe(NcclResult result, NcclComm comm) const {
  const char* const text = ncclGetErrorString(result);
  std::string all = text == nullptr ? "NCCL error " + std::to_string(static_cast<int>(result))
                                    : std::string(text);
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') all += " (" + std::string(last) + ")";
  return all;
}

NcclMemory::NcclMemory(std::shared_ptr<const NcclLibrary> library,
                       std::shared_ptr<const Device> device, std::size_t bytes)
    : library_(std::move(library)), device_(std::move(device)), bytes_(bytes) {
  if (bytes == 0) return;
  const Device::Current current(*device_);
  const NcclResult result = library_->ncclMemAlloc(&memory_, bytes);
  if (result != NcclResult::kSuccess) {
    throw Error(ErrorKind::kAborted, "ncclMemAlloc of " + std::to_string(bytes) +
                                         " bytes for GPU " + std::to_string(device_->index()) +
                                         " failed: " + library_->describe(result, nullptr));
  }
}

NcclMemory::~NcclMemory() {
  if (memory_ == nullptr) return;
  try {
    const Device::Current current(*device_);
    library_->ncclMemFree(memory_);
  } catch (const Error&) {  // the driver has ended, and its memory with it
  }
}

NcclMemory::NcclMemory(NcclMemory&& other) noexcept { *this = std::move(other); }

NcclMemory& NcclMemory::operator=(NcclMemory&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace hvdtune
