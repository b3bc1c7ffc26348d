// Stacks asked of other ranks, over connections that the test holds up.
#include "engine/watch/stack_service.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace hvdtune::testing::test_stack_service {
namespace {

constexpr Nanos kPatience = 60 * kSecond;

/// What one rank has sent and the other has not received yet.
class Mail {
 public:
  bool send(std::string_view message) {
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(message);
    return true;
  }
  std::string next() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (!messages_.empty()) {
          std::string message = messages_.front();
          messages_.erase(messages_.begin());
          return message;
        }
      }
      std::this_thread::yield();
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

TEST(a_late_answer_is_none_to_the_next_question) {
  Mail questions;
  Mail answers;
  StackService asker(0, 2, [&](int, std::string_view message) { return questions.send(message); });
  StackService other(1, 2, [&](int, std::string_view message) { return answers.send(message); });
  std::atomic<int> calls{0};
  other.set_source([&] { return "stack " + std::to_string(++calls); });

  // The first question is given up; its answer is on its way.
  CHECK(asker.ask({1}, monotonic_now()).empty());
  CHECK(other.receive(0, questions.next()));
  const std::string late = answers.next();

  std::map<int, std::string> found;
  std::thread second([&] { found = asker.ask({1}, monotonic_now() + kPatience); });
  const std::string question = questions.next();  // from here on the second one waits
  CHECK(asker.receive(1, late));
  CHECK(other.receive(0, question));
  CHECK(asker.receive(1, answers.next()));
  second.join();
  CHECK_EQ(found.size(), std::size_t{1});
  CHECK_EQ(found.at(1), std::string("stack 2"));
  other.stop();
  asker.stop();
}

TEST(questions_that_come_together_get_one_answer_to_the_last) {
  Mail answers;
  StackService other(1, 2, [&](int, std::string_view message) { return answers.send(message); });
  Mail questions;
  StackService asker(0, 2, [&](int, std::string_view message) { return questions.send(message); });
  std::atomic<bool> entered{false};
  std::atomic<bool> may_go{false};
  other.set_source([&] {
    entered = true;
    while (!may_go) std::this_thread::yield();
    return std::string("here");
  });
  // As of a rank that was stopped for a while.
  for (int i = 0; i < 3; ++i) CHECK(asker.ask({1}, monotonic_now()).empty());
  CHECK(other.receive(0, questions.next()));
  while (!entered) std::this_thread::yield();
  CHECK(other.receive(0, questions.next()));
  CHECK(other.receive(0, questions.next()));
  std::map<int, std::string> found;
  std::thread fourth([&] { found = asker.ask({1}, monotonic_now() + kPatience); });
  CHECK(other.receive(0, questions.next()));
  may_go = true;
  CHECK(asker.receive(1, answers.next()));  // to the first: too late
  CHECK(asker.receive(1, answers.next()));
  fourth.join();
  CHECK_EQ(found.at(1), std::string("here"));
  other.stop();
  asker.stop();
}

TEST(messages_of_others_and_damaged_ones_are_told_apart) {
  StackService asker(0, 2, [](int, std::string_view) { return true; });
  CHECK(!asker.receive(1, ""));
  CHECK(!asker.receive(1, "c"));
  CHECK(!asker.receive(1, "s"));  // rank 0 is asked by nobody
  CHECK(asker.receive(1, "S"));
  CHECK(asker.receive(1, std::string(9, 'S')));
}

}  // namespace
}  // namespace hvdtune::testing::test_stack_service
