#include "engine/submission/handle_table.h"

#include <map>
#include <random>

#include "check.h"

namespace hvdtune::testing::test_handle_table {
namespace {

OperationPtr operation_of(std::int64_t handle) {
  auto operation = std::make_shared<Operation>();
  operation->handle = handle;
  return operation;
}

}  // namespace

TEST(what_was_added_is_found_until_it_is_taken) {
  std::mt19937_64 generator(5);
  for (const int kept : {1, 40, 1000}) {
    HandleTable table;
    std::map<std::int64_t, OperationPtr> expected;
    std::int64_t next = 1;
    for (int step = 0; step < 40000; ++step) {
      const bool full = expected.size() > static_cast<std::size_t>(kept);
      if (!full && generator() % 2 == 0) {
        // Mostly in order, as the engine counts; sometimes far away, so that places collide.
        next += generator() % 50 == 0 ? 256 * static_cast<std::int64_t>(generator() % 9) + 1 : 1;
        expected[next] = operation_of(next);
        table.add(next, expected[next]);
      } else if (!expected.empty()) {
        auto victim = expected.begin();
        std::advance(victim, static_cast<std::ptrdiff_t>(generator() % 3 % expected.size()));
        CHECK(table.take(victim->first) == victim->second);
        CHECK(table.take(victim->first) == nullptr);
        expected.erase(victim);
      }
      if (step % 97 != 0) continue;
      for (const auto& [handle, operation] : expected) {
        CHECK(table.find(handle) != nullptr && *table.find(handle) == operation);
      }
      CHECK(table.find(next + 1) == nullptr);
    }
  }
}

}  // namespace hvdtune::testing::test_handle_table
