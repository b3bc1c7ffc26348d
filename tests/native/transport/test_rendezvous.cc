// Ranks that meet over the network, or cannot.
#include "transport/meeting/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "socket_world.h"
#include "threads.h"
#include "transport/sockets/handshake.h"
#include "wire/meeting.h"

namespace hvdtune::testing::test_rendezvous {
namespace {

/// Every rank must fail with `kind` and a text that contains `text`.
void check_all_fail(int ranks, const std::function<void(RendezvousOptions&)>& change,
                    ErrorKind kind, const std::string& text) {
  const auto listener = loopback_listener();
  run_threads(ranks, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, ranks, listener);
    change(options);
    try {
      form_mesh(options);
    } catch (const Error& error) {
      CHECK_MSG(std::string(error.what()).find(text) != std::string::npos,
                "rank " << rank << ": " << error.what());
      CHECK_EQ(error.kind(), kind);
      return;
    }
    CHECK_MSG(false, "rank " << rank << " has met the others");
  });
}

Fd connect_to(const TcpAddress& address) {
  std::string why;
  Fd socket = tcp::connect({address}, kForever, why, [](const Fd&, std::string&) { return true; });
  CHECK_MSG(socket.valid(), why);
  return socket;
}

/// A byte goes both ways between any two ranks, and comes from the right one.
void check_connected(const std::vector<std::shared_ptr<Mesh>>& meshes) {
  run_threads(static_cast<int>(meshes.size()), [&](int rank) {
    const Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    CHECK_EQ(mesh.rank(), rank);
    CHECK_EQ(mesh.size(), static_cast<int>(meshes.size()));
    const Nanos deadline = monotonic_now() + 60 * kSecond;
    for (int peer = 0; peer < mesh.size(); ++peer) {
      CHECK_EQ(mesh.peer(peer).hostname, "host" + std::to_string(peer));
      CHECK(mesh.peer(peer).pid != 0);
      if (peer == rank) continue;
      CHECK(mesh.peer(peer).notices.valid());
      const char byte = static_cast<char>(rank);
      CHECK(tcp::send_all(mesh.peer(peer).data, {&byte, 1}, deadline) == tcp::Outcome::kDone);
    }
    for (int peer = 0; peer < mesh.size(); ++peer) {
      char byte = 0;
      if (peer == rank) continue;
      CHECK(tcp::receive_all(mesh.peer(peer).data, &byte, 1, deadline) == tcp::Outcome::kDone);
      CHECK_EQ(static_cast<int>(byte), peer);
    }
  });
}

}  // namespace

TEST(every_rank_is_connected_with_every_other) {
  for (const int ranks : {1, 2, 3, 8, 16}) check_connected(loopback_mesh(ranks));
}

TEST(ranks_may_listen_at_an_interface_by_its_name) {
  check_connected(
      loopback_mesh(4, [](RendezvousOptions& options) { options.interfaces = {"lo"}; }));
}

TEST(ranks_meet_over_ipv6) {
  std::shared_ptr<TcpListener> listener;
  try {
    listener = loopback_listener("::1");
  } catch (const Error&) {
    return;  // a kernel, or a container, without IPv6
  }
  std::vector<std::shared_ptr<Mesh>> meshes(3);
  run_threads(3, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] = form_mesh(loopback_options(rank, 3, listener));
    CHECK(TcpAddress::peer(meshes[static_cast<std::size_t>(rank)]->peer((rank + 1) % 3).data.get())
              .host() == "::1");
  });
  check_connected(meshes);
}

TEST(the_others_wait_for_a_rank_0_that_comes_late) {
  auto listener = loopback_listener();
  const int port = listener->addresses()[0].port();
  std::atomic<int> waiting{0};
  std::vector<std::shared_ptr<Mesh>> meshes(3);
  // Nobody listens there yet: the port's number is known, and free again.
  RendezvousOptions late = loopback_options(0, 3, listener);
  late.listener.reset();
  RendezvousOptions early = loopback_options(1, 3, listener);
  listener.reset();
  run_threads(3, [&](int rank) {
    RendezvousOptions options = rank == 0 ? late : early;
    options.rank = rank;
    options.hostname = "host" + std::to_string(rank);
    options.port = port;
    options.on_wait = [&waiting] { waiting.fetch_add(1); };
    while (rank == 0 && waiting.load() < 6) std::this_thread::yield();
    meshes[static_cast<std::size_t>(rank)] = form_mesh(options);
  });
  check_connected(meshes);
}

TEST(ranks_that_do_not_come_are_named_to_all_others) {
  const auto listener = loopback_listener();
  run_threads(3, [&](int rank) {
    // Of five.
    RendezvousOptions options = loopback_options(rank, 5, listener);
    if (rank == 0) options.timeout = 2 * kSecond;  // the others get its words
    options.grace = 0;
    CHECK_THROWS_WITH(form_mesh(options), Error,
                      "not all processes of the job came within 2 s (HOROVOD_START_TIMEOUT): "
                      "missing ranks 3, 4");
  });
}

TEST(a_rank_0_that_does_not_come_is_named_with_its_address) {
  auto listener = loopback_listener();
  RendezvousOptions options = loopback_options(1, 2, listener);
  listener.reset();
  options.timeout = 100 * kMillisecond;
  CHECK_THROWS_WITH(form_mesh(options), Error,
                    "rank 0 did not come within 0.1 s (HOROVOD_START_TIMEOUT): rank 1 on host1 "
                    "cannot reach it at 127.0.0.1:" +
                        std::to_string(options.port) +
                        " (127.0.0.1:" + std::to_string(options.port) + ": Connection refused)");
}

TEST(mixed_versions_are_refused_on_every_rank) {
  check_all_fail(
      3,
      [](RendezvousOptions& options) {
        if (options.rank == 2) options.version = "1.2.4";
      },
      ErrorKind::kInvalidArgument,
      "the ranks run different versions of hvdtune: hvdtune 1.2.4 (protocol 3) at 127.0.0.1, "
      "hvdtune 1.2.3 (protocol 3) on rank 0 at host0; install the same version on all hosts");
}

TEST(ranks_that_disagree_about_the_job_fail_with_both_opinions) {
  check_all_fail(
      3,
      [](RendezvousOptions& options) {
        if (options.rank == 1) options.agreement = "HOROVOD_A=1\nHOROVOD_B=3\n";
      },
      ErrorKind::kInvalidArgument,
      "has settings that must be equal on all ranks: HOROVOD_B=3 there, HOROVOD_B=2 on rank 0");
  check_all_fail(
      3,
      [](RendezvousOptions& options) {
        if (options.rank == 1) options.size = 4;
      },
      ErrorKind::kInvalidArgument, "was started for a job of 4 processes, rank 0 for one of 3");
  check_all_fail(
      3,
      [](RendezvousOptions& options) {
        if (options.rank == 2) options.rank = 1;
      },
      ErrorKind::kInvalidArgument, "came twice: pid ");
}

TEST(a_rank_with_another_secret_learns_why_and_the_others_who_is_missing) {
  const auto listener = loopback_listener();
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank == 0) options.timeout = 2 * kSecond;
    options.grace = 0;
    if (rank == 2) options.secret = "another one";
    const std::string text =
        rank == 2 ? "rank 2 cannot join rank 0 at 127.0.0.1:" + std::to_string(options.port) +
                        ": 127.0.0.1:" + std::to_string(options.port) +
                        ": it turned this process away: the two have different secrets"
                  : std::string("missing rank 2");
    CHECK_THROWS_WITH(form_mesh(options), Error, text);
  });
}

TEST(what_cannot_be_is_refused_at_once) {
  RendezvousOptions options;
  options.size = 2;
  CHECK_THROWS_WITH(form_mesh(options), Error, "need a secret in common (HVDTUNE_SECRET)");
  options.secret = "x";
  options.size = kMaxMeshRanks + 1;
  CHECK_THROWS_WITH(form_mesh(options), Error, "at most 1024 can be connected with each other");
  options.size = 2;
  options.interfaces = {"nowhere0"};
  CHECK_THROWS_WITH(form_mesh(options), Error, "this host has no network interface nowhere0");
}

TEST(strangers_that_come_meanwhile_change_nothing) {
  const auto listener = loopback_listener();
  const TcpAddress address = listener->addresses()[0];
  std::vector<std::shared_ptr<Mesh>> meshes(4);
  std::vector<Fd> silent;
  const auto knock = [&](std::string_view words) {
    silent.push_back(connect_to(address));
    tcp::send_all(silent.back(), words, monotonic_now() + kSecond);
  };
  for (int i = 0; i < 50; ++i) knock("");
  knock("GET / HTTP/1.1\r\n\r\n");
  knock(handshake::kMagic);
  knock(handshake::make_greeting());
  run_threads(4, [&](int rank) {
    meshes[static_cast<std::size_t>(rank)] = form_mesh(loopback_options(rank, 4, listener));
  });
  CHECK(listener->strangers() >= 1);
  check_connected(meshes);
}

/// It knows the secret, but says what no version says.
TEST(nonsense_from_a_process_of_the_job_is_no_rank) {
  const auto listener = loopback_listener();
  const TcpAddress address = listener->addresses()[0];
  std::vector<std::shared_ptr<Mesh>> meshes(2);
  std::vector<Fd> kept;
  run_threads(3, [&](int thread) {
    if (thread < 2) {
      meshes[static_cast<std::size_t>(thread)] = form_mesh(loopback_options(thread, 2, listener));
      return;
    }
    for (const std::string& message : {std::string(), std::string("nonsense"),
                                       std::string(1000, '\xff'), std::string(7, '\0')}) {
      std::string why;
      kept.push_back(
          tcp::connect({address}, kForever, why, [](const Fd&, std::string&) { return true; }));
      if (!kept.back().valid()) continue;
      // Rank 0 may have got what it waits for, and listen no more.
      if (handshake::connect_side(kept.back(), "the secret of this job", monotonic_now() + kSecond,
                                  why) != handshake::Verdict::kTrusted) {
        continue;
      }
      tcp::send_message(kept.back(), message, monotonic_now() + kSecond);
    }
  });
  check_connected(meshes);
}

TEST(a_rank_that_fails_while_it_waits_for_the_others_gives_them_its_reason) {
  const auto listener = loopback_listener();
  std::atomic<bool> failed{false};
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    int waits = 0;
    if (rank == 2) {
      options.on_wait = [&waits] {
        // Long after it came to rank 0, where it waits for rank 1.
        if (++waits == 8) throw Error(ErrorKind::kAborted, "rank 2 was interrupted");
      };
    }
    while (rank == 1 && !failed) std::this_thread::yield();
    const auto meet = [&] {
      try {
        form_mesh(options);
      } catch (...) {
        failed = failed || rank == 2;
        throw;
      }
    };
    CHECK_THROWS_WITH(meet(), Error, "rank 2 was interrupted");
  });
}

TEST(a_rank_that_cannot_listen_fails_all_with_its_reason) {
  const auto listener = loopback_listener();
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank == 1) options.interfaces = {"nowhere0"};
    CHECK_THROWS_WITH(form_mesh(options), Error, "this host has no network interface nowhere0");
  });
}

TEST(rank_0_that_is_interrupted_tells_those_who_are_there) {
  const auto listener = loopback_listener();
  std::atomic<bool> present{false};
  run_threads(2, [&](int rank) {
    // Of three.
    RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank == 0) {
      options.on_wait = [&] {
        if (present) throw std::runtime_error("Ctrl-C");
      };
      CHECK_THROWS_WITH(form_mesh(options), std::runtime_error, "Ctrl-C");
      return;
    }
    int waits = 0;
    options.on_wait = [&] { present = present || ++waits == 8; };
    CHECK_THROWS_WITH(form_mesh(options), Error,
                      "rank 0 (pid " + std::to_string(getpid()) +
                          " on host0) ended before all processes of the job had come: Ctrl-C");
  });
}

/// Rank 2 of three, by hand: it comes to rank 0 and gets the directory.
struct ByHand {
  explicit ByHand(const RendezvousOptions& given, const TcpAddress& rank0)
      : options(given), address(rank0) {
    introduction.version = options.version;
    introduction.from = 2;
    introduction.size = 3;
    introduction.pid = getpid();
    introduction.hostname = options.hostname;
    introduction.agreement = options.agreement;
    notices = introduce();
    tcp::send_message(notices, wire::encode_places({}), kForever);
    std::string message;
    CHECK(tcp::receive_message(notices, message, kForever) == tcp::Outcome::kDone);
    introduction.meeting = wire::Directory::decode(message).meeting;
  }

  [[nodiscard]] Fd introduce() const {
    Fd socket = connect_to(address);
    std::string why;
    CHECK(handshake::connect_side(socket, options.secret, kForever, why) ==
          handshake::Verdict::kTrusted);
    CHECK(tcp::send_message(socket, introduction.encode(), kForever) == tcp::Outcome::kDone);
    return socket;
  }

  const RendezvousOptions& options;
  const TcpAddress address;
  wire::Introduction introduction;
  Fd notices;
};

/// After the directory, before all are connected. A rank that is still between two steps of
/// connecting with one that has failed must not take that for the reason.
TEST(a_rank_that_dies_before_all_are_connected_is_named_to_those_who_are_late) {
  const auto listener = loopback_listener();
  std::atomic<bool> dying{false};
  std::atomic<bool> held{false};
  std::atomic<bool> rank0_failed{false};
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank == 2) {
      const ByHand self(options, listener->addresses()[0]);
      dying = true;
      while (!held) std::this_thread::yield();
      return;
    }
    if (rank == 1) {
      options.on_wait = [&] {
        held = held || dying;
        while (held && !rank0_failed) std::this_thread::yield();
      };
    }
    const auto meet = [&] {
      try {
        form_mesh(options);
      } catch (...) {
        rank0_failed = rank0_failed || rank == 0;
        throw;
      }
    };
    CHECK_THROWS_WITH(meet(), Error,
                      "rank 2 (pid " + std::to_string(getpid()) +
                          " on host2) died: its process ended without shutting down");
  });
}

/// Rank 0 is connected with everybody, but waits for who is not: it may be slow, or die.
TEST(no_rank_goes_on_before_all_are_connected) {
  const auto listener = loopback_listener();
  run_threads(3, [&](int rank) {
    const RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank < 2) {
      CHECK_THROWS_WITH(form_mesh(options), Error,
                        "rank 2 (pid " + std::to_string(getpid()) +
                            " on host2) died: its process ended without shutting down");
      return;
    }
    // Connects with rank 0, but never with rank 1.
    ByHand self(options, listener->addresses()[0]);
    self.introduction.lane = wire::Lane::kData;
    const Fd data = self.introduce();
    std::string message;
    CHECK(tcp::receive_message(data, message, kForever) == tcp::Outcome::kDone);
  });
}

TEST(ranks_that_leave_at_once_keep_nobody_from_being_connected) {
  for (int turn = 0; turn < 30; ++turn) {
    const auto listener = loopback_listener();
    run_threads(6, [&](int rank) { form_mesh(loopback_options(rank, 6, listener)); });
  }
}

/// The meeting has failed already.
TEST(a_rank_that_comes_late_learns_why_the_others_have_failed) {
  const auto listener = loopback_listener();
  std::atomic<bool> over{false};
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    options.grace = 60 * kSecond;
    if (rank == 0) options.timeout = 2 * kSecond;
    if (rank == 2) {
      while (!over) std::this_thread::yield();
    }
    const auto meet = [&] {
      try {
        form_mesh(options);
      } catch (...) {
        // Rank 0 has told those who were there, and is ready for those who still come.
        over = over || rank == 1;
        throw;
      }
    };
    CHECK_THROWS_WITH(meet(), Error,
                      "not all processes of the job came within 2 s (HOROVOD_START_TIMEOUT): "
                      "missing rank 2");
  });
}

/// What had rank 0's port before may be about to end, and hangs up.
TEST(a_service_that_hangs_up_is_not_rank_0_and_rank_0_may_still_come) {
  auto listener = loopback_listener();
  RendezvousOptions late = loopback_options(0, 2, listener);
  RendezvousOptions early = loopback_options(1, 2, listener);
  const TcpAddress address = listener->addresses()[0];
  late.listener.reset();
  listener.reset();
  std::vector<std::shared_ptr<Mesh>> meshes(2);
  run_threads(2, [&](int rank) {
    if (rank == 0) {
      Fd other = tcp::listen(address);
      for (int callers = 0; callers < 6; ++callers) {
        CHECK(tcp::wait_for(other.get(), POLLIN, kForever));
        const Fd caller(accept4(other.get(), nullptr, nullptr, 0));
      }
      other = Fd();
    }
    meshes[static_cast<std::size_t>(rank)] = form_mesh(rank == 0 ? late : early);
  });
  check_connected(meshes);
}

/// A name may stand for several addresses, and behind one of them may be somebody else's service.
TEST(a_service_that_says_nothing_at_another_address_of_rank_0_leaves_time_for_rank_0) {
  std::vector<TcpAddress> addresses;
  try {
    addresses = resolve("localhost", 0);
  } catch (const Error&) {
    return;  // nobody knows the name
  }
  const auto of = [&](int family) {
    return std::any_of(addresses.begin(), addresses.end(),
                       [&](const TcpAddress& address) { return address.family() == family; });
  };
  if (!of(AF_INET) || !of(AF_INET6)) return;
  const auto listener = loopback_listener();
  const Fd silent = tcp::listen(TcpAddress::of_digits("::1", listener->addresses()[0].port()));
  std::vector<std::shared_ptr<Mesh>> meshes(2);
  run_threads(2, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 2, listener);
    options.host = "localhost";
    meshes[static_cast<std::size_t>(rank)] = form_mesh(options);
  });
  check_connected(meshes);
}

TEST(what_waits_can_be_interrupted) {
  const auto listener = loopback_listener();
  RendezvousOptions options = loopback_options(0, 2, listener);
  options.on_wait = [] { throw std::runtime_error("Ctrl-C"); };
  CHECK_THROWS_WITH(form_mesh(options), std::runtime_error, "Ctrl-C");
  options.rank = 1;
  CHECK_THROWS_WITH(form_mesh(options), std::runtime_error, "Ctrl-C");
}

TEST(notices_that_nobody_understands_end_the_job) {
  const std::string bad[] = {std::string(4, '\0'), std::string(4, '\xff'),
                             tcp::with_length("\x07nonsense")};
  for (const std::string& bytes : bad) {
    const auto meshes = loopback_mesh(2);
    tcp::send_all(meshes[1]->peer(0).notices, bytes, monotonic_now() + kSecond);
    const auto look = [&] {
      while (tcp::wait_for(meshes[0]->attention(), POLLIN, kForever)) meshes[0]->look();
    };
    CHECK_THROWS_WITH(look(), Error,
                      "sent a message that this version of hvdtune does not understand");
  }
}

TEST(the_first_cause_of_an_abort_stays) {
  const auto meshes = loopback_mesh(2);
  CHECK(meshes[0]->abort_status().ok());
  meshes[0]->abort("first");
  meshes[0]->abort("second");
  CHECK_EQ(meshes[0]->abort_status().text, std::string("first"));
  const auto look = [&] {
    while (tcp::wait_for(meshes[1]->attention(), POLLIN, kForever)) meshes[1]->look();
  };
  CHECK_THROWS_WITH(look(), Error, "first");
  CHECK_THROWS_WITH(meshes[1]->look(), Error, "first");
}

TEST(the_text_of_a_notice_is_cut_between_its_characters) {
  for (const std::size_t before : {0U, 1U}) {
    std::string text(before, 'x');
    for (int i = 0; i < 5000; ++i) text += "\xC3\xA4";
    const auto meshes = loopback_mesh(2);
    meshes[0]->abort(text);
    const auto look = [&] {
      while (tcp::wait_for(meshes[1]->attention(), POLLIN, kForever)) meshes[1]->look();
    };
    CHECK_THROWS(look(), Error);
    const std::string told = meshes[1]->abort_status().text;
    CHECK(told.size() > 1000);
    CHECK_EQ((told.size() - before) % 2, 0U);
  }
}

}  // namespace hvdtune::testing::test_rendezvous
