// Ranks that do not answer for a while as others connect to them: they are stopped, say, or swap.
#include "transport/meeting/connecting.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "engine_job.h"
#include "socket_world.h"
#include "threads.h"
#include "transport/sockets/handshake.h"
#include "wire/meeting.h"

namespace hvdtune::testing::test_connecting {
namespace {

// A rank stands still until another one has waited for so many slices, which take longer than an
// introduction may.
constexpr int kWaits = 8;
constexpr Nanos kIntroduction = 2 * tcp::kWaitSlice;

/// Rank 2 reaches rank 1, which has these addresses `before` its own, and stands still: before it
/// has accepted the connection, or after it has heard who is there.
void check_reaches(const std::vector<TcpAddress>& before, bool accepts) {
  const auto listener = loopback_listener();
  std::vector<TcpAddress> addresses = before;
  addresses.push_back(listener->addresses().front());
  std::atomic<int> waits{0};
  std::atomic<bool> over{false};
  const auto stand_still = [&] {
    while (waits < kWaits && !over) std::this_thread::yield();
  };
  run_threads(2, [&](int thread) {
    if (thread == 0) {
      RendezvousOptions options = loopback_options(2, 3, listener);
      options.introduction = kIntroduction;
      options.on_wait = [&] { waits.fetch_add(1); };
      const Attempt attempt = reach_patiently(addresses, options, wire::Introduction{}, true,
                                              monotonic_now() + kPatience);
      over = true;
      CHECK_MSG(attempt.socket.valid(), attempt.why);
      return;
    }
    if (!accepts) stand_still();
    std::optional<TcpListener::Comer> comer;
    while (!comer && !over) comer = listener->accept(monotonic_now() + tcp::kWaitSlice);
    CHECK(comer.has_value());
    if (accepts) stand_still();
    CHECK(tcp::send_message(comer->socket, kWelcome, kForever) == tcp::Outcome::kDone);
    while (!over) std::this_thread::yield();
  });
}

Fd connect_to(const TcpAddress& address, const std::string& secret) {
  std::string why;
  Fd socket = tcp::connect({address}, kForever, why, [](const Fd&, std::string&) { return true; });
  CHECK_MSG(socket.valid(), why);
  CHECK(handshake::connect_side(socket, secret, kForever, why) == handshake::Verdict::kTrusted);
  return socket;
}

}  // namespace

TEST(a_rank_that_stands_still_is_reached_when_it_goes_on) { check_reaches({}, false); }

TEST(a_rank_that_stands_still_before_its_welcome_keeps_the_connection) { check_reaches({}, true); }

/// Somebody else's service is at its other address, and says nothing.
TEST(a_rank_with_several_addresses_is_tried_until_it_goes_on) {
  const Fd silent = tcp::listen(TcpAddress::of_digits("127.0.0.1", 0));
  for (const bool accepts : {false, true}) {
    check_reaches({TcpAddress::local(silent.get())}, accepts);
  }
}

/// Between its introduction and the addresses where it listens.
TEST(rank_0_waits_for_all_that_a_rank_has_to_say) {
  const auto listener = loopback_listener();
  std::atomic<bool> introduced{false};
  std::atomic<int> waits{0};
  std::atomic<bool> over{false};
  run_threads(2, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 2, listener);
    if (rank == 0) {
      options.introduction = kIntroduction;
      options.on_wait = [&] {
        if (introduced) waits.fetch_add(1);
      };
      const auto meet = [&] {
        try {
          form_mesh(options);
        } catch (...) {
          over = true;
          throw;
        }
      };
      CHECK_THROWS_WITH(meet(), Error, "died: its process ended without shutting down");
      return;
    }
    const Fd socket = connect_to(listener->addresses().front(), options.secret);
    wire::Introduction introduction;
    introduction.version = options.version;
    introduction.from = rank;
    introduction.size = options.size;
    introduction.pid = getpid();
    introduction.hostname = options.hostname;
    introduction.agreement = options.agreement;
    tcp::send_message(socket, introduction.encode(), kForever);
    introduced = true;
    while (waits < kWaits && !over) std::this_thread::yield();
    tcp::send_message(socket, wire::encode_places({}), kForever);
    std::string message;
    CHECK(tcp::receive_message(socket, message, kForever) == tcp::Outcome::kDone);
    CHECK_EQ(wire::Directory::decode(message).error, std::string());
  });
}

TEST(messages_show_the_ranks_of_the_job) {
  const auto name = [](RendezvousOptions& options) { options.names = {0, 4, 7}; };
  const auto meshes = loopback_mesh(3, name);
  check_contains(meshes[0]->name(2), "rank 7 (pid ");
  check_contains(meshes[2]->name(1), "rank 4 (pid ");
  const auto listener = loopback_listener();
  for (const int rank : {0, 2}) {
    RendezvousOptions alone = loopback_options(rank, 3, listener);
    name(alone);
    alone.timeout = 100 * kMillisecond;
    alone.grace = 0;
    CHECK_THROWS_WITH(form_mesh(alone), Error,
                      rank == 0 ? "missing ranks 4, 7" : "rank 7 on host2 cannot reach it");
  }
}

}  // namespace hvdtune::testing::test_connecting
