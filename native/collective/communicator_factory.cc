#include "collective/communicator_factory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collective/exchange_texts.h"

namespace hvdtune {

void agree(Communicator& control, const CommunicatorSpec& spec,
           const std::function<void()>& attempt) {
  std::string problem;
  try {
    attempt();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::vector<std::string> problems = exchange_texts(control, problem);
  const auto failed = std::find_if(problems.begin(), problems.end(),
                                   [](const std::string& text) { return !text.empty(); });
  if (failed == problems.end()) return;
  const bool same = std::all_of(problems.begin(), problems.end(),
                                [&](const std::string& text) { return text == *failed; });
  const auto member = static_cast<std::size_t>(failed - problems.begin());
  const std::string who = same ? "" : "rank " + std::to_string(spec.members[member]) + ": ";
  try {
    // A member that leaves now ends its process; the others must not report that as the reason.
    control.barrier();
  } catch (const Error&) {
  }
  throw Error(ErrorKind::kInvalidArgument, who + *failed);
}

CommunicatorFactory make_failing_factory(std::string problem, CommunicatorFactory control) {
  return [problem = std::move(problem), control = std::move(control)](
             const CommunicatorSpec& spec) -> std::unique_ptr<Communicator> {
    agree(*control(spec), spec, [&] { throw Error(ErrorKind::kInvalidArgument, problem); });
    return nullptr;  // not reached: all members throw
  };
}

}  // namespace hvdtune
