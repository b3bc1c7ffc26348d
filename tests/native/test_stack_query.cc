#include "engine/stack_query.h"

#include <atomic>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "check.h"

namespace hvdtune {
namespace {

std::string wait_for_answer(StackQuery& query) {
  while (true) {
    if (const auto text = query.take()) return *text;
    std::this_thread::yield();
  }
}

TEST(the_answer_comes_once_and_rings) {
  StackQuery query([] {});
  query.start();  // no source: nothing happens
  CHECK(!query.take().has_value());
  int calls = 0;
  query.set_source([&] { return "stack " + std::to_string(++calls); });
  query.start();
  CHECK_EQ(wait_for_answer(query), std::string("stack 1"));
  CHECK(!query.take().has_value());
}

TEST(stop_waits_for_the_query_under_way) {
  StackQuery query([] {});
  std::atomic<bool> entered{false};
  std::atomic<bool> may_go{false};
  std::atomic<bool> returned{false};
  query.set_source([&] {
    entered = true;
    while (!may_go) std::this_thread::yield();
    returned = true;
    return std::string("late");
  });
  query.start();
  query.start();  // the first is under way: nothing happens
  while (!entered) std::this_thread::yield();
  std::atomic<bool> returned_before_stop{false};
  std::thread stopper([&] {
    query.stop();
    returned_before_stop = returned.load();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  may_go = true;
  stopper.join();
  CHECK(returned_before_stop);
  query.start();  // after stop(): nothing happens
  CHECK_EQ(query.take().value_or(""), std::string("late"));
}

}  // namespace
}  // namespace hvdtune
