#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/coordination/coordination.h"
#include "engine/job/job.h"
#include "engine/submission/submissions.h"
#include "engine/watch/stack_service.h"
#include "observe/status/job_status.h"
#include "transport/control/control_server.h"

namespace hvdtune {

/// Rank 0: answers other processes of its user that ask about the job. Any thread may call any
/// method; call serve() before the others.
class JobAnswers {
 public:
  /// All references outlive it.
  JobAnswers(const Job& job, const JobStatus& status, const Coordination& coordination,
             Submissions& submissions, StackService& stacks)
      : job_(job),
        status_(status),
        coordination_(coordination),
        submissions_(submissions),
        stacks_(stacks) {}

  /// Engine::status()
  std::string status();
  /// Engine::serve(); once.
  void serve(const std::string& name, std::string identity,
             std::function<std::string(std::string_view)> command);
  /// Waits for an answer under way; afterwards nobody can ask any more.
  void stop() {
    if (server_) server_->stop();
  }
  /// See ControlServer::abandon().
  void abandon() const {
    if (server_) server_->abandon();
  }

 private:
  void look_now();
  std::string answer(std::string_view question);
  std::string stacks_text(std::string_view which);

  const Job& job_;
  const JobStatus& status_;
  const Coordination& coordination_;
  Submissions& submissions_;
  StackService& stacks_;
  std::function<std::string(std::string_view)> command_;
  std::string identity_;
  std::optional<ControlServer> server_;
};

}  // namespace hvdtune
