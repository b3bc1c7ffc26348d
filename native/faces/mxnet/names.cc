#include "faces/mxnet/names.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/submission/submission.h"

namespace hvdtune::faces::mxnet::names {
namespace {

struct Use {
  const void* operation = nullptr;
  std::vector<void*> memory;
};

struct Table {
  /// Never destroyed: MXNet's threads may still complete operations while the process exits.
  static Table& instance() {
    static auto* const table = new Table;
    return *table;
  }

  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::string>, Use> last;
};

}  // namespace

void enter(const std::string& name, std::uint32_t process_set, const void* operation,
           std::span<void* const> memory) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  Use& use = table.last[{process_set, name}];
  const bool apart = std::find_first_of(use.memory.begin(), use.memory.end(), memory.begin(),
                                        memory.end()) == use.memory.end();
  if (use.operation != nullptr && apart) refuse_name_in_flight(name);
  use = {operation, {memory.begin(), memory.end()}};
}

void leave(const std::string& name, std::uint32_t process_set, const void* operation) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  const auto found = table.last.find({process_set, name});
  if (found != table.last.end() && found->second.operation == operation) table.last.erase(found);
}

}  // namespace hvdtune::faces::mxnet::names
