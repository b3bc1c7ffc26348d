#include "engine/watch/stack_query.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "check.h"

namespace hvdtune::testing::test_stack_query {
namespace {

std::string wait_for_answer(StackQuery& query) {
  while (true) {
    if (const auto answer = query.take()) return answer->text;
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
  query.start();  // behind the first, which is under way; but stop() comes before
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
  CHECK_EQ(wait_for_answer(query), std::string("late"));
}

TEST(what_is_asked_meanwhile_is_answered_anew_once_by_the_newest_number) {
  std::atomic<bool> entered{false};
  std::atomic<bool> may_go{false};
  std::atomic<int> calls{0};
  StackQuery query([] {});
  query.set_source([&] {
    entered = true;
    while (!may_go) std::this_thread::yield();
    return "stack " + std::to_string(++calls);
  });
  CHECK(query.start(1));
  while (!entered) std::this_thread::yield();
  for (std::uint64_t question = 2; question <= 5; ++question) CHECK(query.start(question));
  may_go = true;
  std::optional<StackQuery::Answer> answer;
  while (!answer || answer->question != 5) {
    answer = query.take();
    std::this_thread::yield();
  }
  CHECK_EQ(answer->text, std::string("stack 2"));
  query.stop();
  CHECK_EQ(calls.load(), 2);
  CHECK(!query.start(6));
}

}  // namespace
}  // namespace hvdtune::testing::test_stack_query
