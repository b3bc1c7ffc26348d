// A profiler's library for NVTX 3, as NVTX_INJECTION64_PATH names one: it notes all ranges, and
// every misuse of them.

#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/libraries/nvtx.h"
#include "fake_cuda.h"
#include "faults.h"

namespace {

using namespace hvdtune;  // NOLINT: what it stands for

/// What is noted, line by line: "THREAD push DOMAIN NAME", "THREAD pop", "THREAD start ID DOMAIN
/// NAME", "THREAD end ID", "misuse …". Threads are numbered in the order in which they come.
struct Noted {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::vector<std::string> domains;
  std::set<std::uint64_t> open;  // ranges
  std::uint64_t last_range = 0;
  int threads = 0;
};

/// Never destroyed: threads may still be there.
Noted& noted() {
  static auto* const all = new Noted;
  return *all;
}

thread_local int own_number = 0;  // 0: not known yet
thread_local int depth = 0;

/// The caller holds the mutex.
void note(const std::string& what) {
  if (own_number == 0) own_number = ++noted().threads;
  noted().lines.push_back(std::to_string(own_number) + " " + what);
}

void note_misuse(const std::string& what) { noted().lines.push_back("misuse " + what); }

std::string text_of(nvtx::Domain domain, const nvtx::EventAttributes* attributes) {
  const auto number = reinterpret_cast<std::size_t>(domain);
  if (number == 0 || number > noted().domains.size()) {
    note_misuse("of a domain that nobody has made");
    return {};
  }
  if (attributes == nullptr || attributes->version != nvtx::kVersion ||
      attributes->size != sizeof *attributes || attributes->message_type != nvtx::kAscii ||
      attributes->message == nullptr) {
    note_misuse("of attributes");
    return {};
  }
  return noted().domains[number - 1] + " " + attributes->message;
}

nvtx::Domain create(const char* name) {
  const std::lock_guard lock(noted().mutex);
  noted().domains.emplace_back(name);
  return reinterpret_cast<nvtx::Domain>(noted().domains.size());
}

std::uint64_t start(nvtx::Domain domain, const nvtx::EventAttributes* attributes) {
  const std::lock_guard lock(noted().mutex);
  const std::uint64_t id = ++noted().last_range;
  noted().open.insert(id);
  note("start " + std::to_string(id) + " " + text_of(domain, attributes));
  return id;
}

void end(nvtx::Domain, std::uint64_t id) {
  const std::lock_guard lock(noted().mutex);
  if (noted().open.erase(id) == 0) note_misuse("of a range that is not open");
  note("end " + std::to_string(id));
}

int push(nvtx::Domain domain, const nvtx::EventAttributes* attributes) {
  const std::lock_guard lock(noted().mutex);
  note("push " + text_of(domain, attributes));
  return depth++;
}

int pop(nvtx::Domain) {
  const std::lock_guard lock(noted().mutex);
  if (depth == 0) note_misuse("of pop: nothing was pushed");
  note("pop");
  return --depth;
}

/// Puts a function into its place.
template <class Function>
void fill(nvtx::AnyFunction** table, unsigned int number, Function* function) {
  *table[number] = reinterpret_cast<nvtx::AnyFunction>(function);
}

}  // namespace

/// Fault: `decline`.
FAKE_EXPORT int InitializeInjectionNvtx2(nvtx::GetExportTable get) {
  if (fake_cuda::fault("decline")) return 0;
  const auto* const version =
      static_cast<const nvtx::ExportTableVersionInfo*>(get(nvtx::kVersionInfo));
  const auto* const callbacks =
      static_cast<const nvtx::ExportTableCallbacks*>(get(nvtx::kCallbacks));
  if (get(0) != nullptr || version == nullptr || callbacks == nullptr) return 0;
  if (version->struct_size < sizeof *version || callbacks->struct_size < sizeof *callbacks)
    return 0;
  version->SetInjectionNvtxVersion(nvtx::kVersion);
  nvtx::AnyFunction** table = nullptr;
  unsigned int size = 0;
  for (int module = 1; module < nvtx::kModules; ++module) {
    // As profilers do: every function of every module has a place.
    if (callbacks->GetModuleFunctionTable(module, &table, &size) == 0) return 0;
    if (size != nvtx::kModuleSizes[module] || table[0] != nullptr || table[size] != nullptr)
      return 0;
    for (unsigned int f = 1; f < size; ++f) *table[f] = nullptr;
  }
  if (callbacks->GetModuleFunctionTable(nvtx::kModules, &table, &size) != 0) return 0;
  callbacks->GetModuleFunctionTable(nvtx::kCore2, &table, &size);
  fill(table, nvtx::kDomainCreateA, create);
  fill(table, nvtx::kDomainRangeStartEx, start);
  fill(table, nvtx::kDomainRangeEnd, end);
  fill(table, nvtx::kDomainRangePushEx, push);
  fill(table, nvtx::kDomainRangePop, pop);
  return 1;
}

/// Puts what was noted since the last time into `into`, as text of at most `room`
/// bytes with the zero;
/// how long it is. Where it does not fit, nothing is taken.
FAKE_EXPORT std::size_t fake_nvtx_take(char* into, std::size_t room) {
  const std::lock_guard lock(noted().mutex);
  std::string all;
  for (const std::string& line : noted().lines) all += line + "\n";
  if (all.size() >= room) return all.size();
  std::memcpy(into, all.c_str(), all.size() + 1);
  noted().lines.clear();
  return all.size();
}

/// Ranges that have not ended.
FAKE_EXPORT std::size_t fake_nvtx_open() {
  const std::lock_guard lock(noted().mutex);
  return noted().open.size();
}
