// Strangers by the thousand at every door of a meeting: it takes place all the same, no memory is
// taken for them, and whoever belongs to the job gets in.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "engine_job.h"
#include "socket_world.h"
#include "transport/meeting/meet_on_host.h"
#include "transport/sockets/handshake.h"
#include "transport/sockets/unix_socket.h"
#include "wire/meeting.h"

namespace hvdtune::testing::test_meeting_fuzz {
namespace {

constexpr int kStrangers = 1000;
constexpr Nanos kLong = 600 * kSecond;

/// Of this process, now.
std::size_t resident_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

Fd connect_to(const TcpAddress& address) {
  std::string why;
  return tcp::connect({address}, monotonic_now() + kLong, why,
                      [](const Fd&, std::string&) { return true; });
}

/// Connects and does one of the things that strangers do. The slow ones stay.
class Stranger {
 public:
  Stranger(const TcpAddress& address, std::uint64_t seed)
      : generator_(seed), socket_(connect_to(address)) {
    if (!socket_.valid()) return;
    const std::array<std::function<void()>, 6> manners = {
        [&] { say(random_bytes(1 + generator_() % 200)); },
        [&] { say(random_bytes(100'000)); },
        [&] { say(handshake::make_greeting().substr(0, generator_() % 40)); },
        [&] { say(handshake::make_greeting() + random_bytes(32)); },
        // A message of 4 GiB, for those who would look at a length without a proof.
        [&] { say(handshake::make_greeting() + random_bytes(32) + std::string(100, '\xff')); },
        [&] { slow_ = handshake::make_greeting(); },
    };
    manners[seed % manners.size()]();
    if (slow_.empty() && generator_() % 2 == 0) socket_ = Fd();
  }

  /// A slow one says its next byte.
  void go_on() {
    if (slow_.empty() || !socket_.valid()) return;
    say(slow_.substr(0, 1));
    slow_.erase(0, 1);
  }

 private:
  void say(const std::string& bytes) {
    // It may have been turned away already; what the kernel does not take at once is left.
    [[maybe_unused]] const auto sent =
        send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  std::string random_bytes(std::size_t count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(generator_());
    return bytes;
  }

  std::mt19937_64 generator_;
  Fd socket_;
  std::string slow_;
};

/// All of them, no more than 300 at a time.
void besiege(const TcpAddress& address, std::uint64_t seed, int count) {
  std::vector<Stranger> crowd;
  for (int i = 0; i < count; ++i) {
    crowd.emplace_back(address, seed + static_cast<std::uint64_t>(i));
    for (std::size_t slow = 0; slow < crowd.size(); slow += 7) crowd[slow].go_on();
    if (crowd.size() >= 300) crowd.erase(crowd.begin(), crowd.begin() + 150);
  }
}

/// Rank 2 of three, which comes when the strangers have been there. Its thread also besieges rank
/// 1's door, of which only the directory tells. Gives what keeps it present.
std::vector<Fd> come_last(const RendezvousOptions& options, const TcpAddress& rank0) {
  wire::Introduction introduction;
  introduction.version = options.version;
  introduction.from = 2;
  introduction.size = 3;
  introduction.pid = getpid();
  introduction.hostname = options.hostname;
  introduction.agreement = options.agreement;
  const auto introduce = [&](const TcpAddress& address) {
    Fd socket = connect_to(address);
    CHECK(socket.valid());
    std::string why;
    const auto verdict = handshake::connect_side(socket, options.secret, kForever, why);
    CHECK_MSG(verdict == handshake::Verdict::kTrusted, why);
    CHECK(tcp::send_message(socket, introduction.encode(), kForever) == tcp::Outcome::kDone);
    return socket;
  };
  std::vector<Fd> kept;
  std::string message;
  kept.push_back(introduce(rank0));
  tcp::send_message(kept[0], wire::encode_places({}), kForever);
  CHECK(tcp::receive_message(kept[0], message, kForever) == tcp::Outcome::kDone);
  const wire::Directory directory = wire::Directory::decode(message);
  introduction.meeting = directory.meeting;
  const wire::Place& place = directory.entries[1].places[0];
  const TcpAddress rank1 = TcpAddress::of_digits(place.host, place.port);
  besiege(rank0, 2'000'000, kStrangers / 2);
  besiege(rank1, 3'000'000, kStrangers);
  const std::pair<TcpAddress, wire::Lane> lanes[] = {
      {rank0, wire::Lane::kData}, {rank1, wire::Lane::kNotices}, {rank1, wire::Lane::kData}};
  for (const auto& [address, lane] : lanes) {
    introduction.to = address.port() == rank0.port() ? 0 : 1;
    introduction.lane = lane;
    kept.push_back(introduce(address));
    CHECK(tcp::receive_message(kept.back(), message, kForever) == tcp::Outcome::kDone);
    CHECK_EQ(message, std::string("welcome"));
  }
  // To rank 0, which tells all others when it has heard this of everybody.
  tcp::send_message(kept[1], "connected", kForever);
  return kept;
}

}  // namespace

TEST(a_thousand_strangers_at_each_door_change_nothing) {
  const auto listener = loopback_listener();
  const TcpAddress rank0 = listener->addresses()[0];
  const std::size_t before = resident_bytes();
  std::atomic<std::size_t> most{0};
  std::vector<std::shared_ptr<Mesh>> meshes(2);
  std::vector<Fd> kept;
  run_threads(3, [&](int rank) {
    RendezvousOptions options = loopback_options(rank, 3, listener);
    if (rank == 0) {
      options.on_wait = [&] { most = std::max(most.load(), resident_bytes()); };
    }
    if (rank < 2) {
      auto& mesh = meshes[static_cast<std::size_t>(rank)] = form_mesh(options);
      CHECK_EQ(mesh->peer(2).hostname, std::string("host2"));
      CHECK(mesh->peer(2).data.valid());
      return;
    }
    besiege(rank0, 1'000'000, kStrangers / 2);
    kept = come_last(options, rank0);
  });
  CHECK(listener->strangers() > kStrangers / 4);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // 256 connections at each door, and the crowd itself; under a sanitizer what is freed stays.
  CHECK_MSG(most < before + (16u << 20), most - before << " bytes");
#endif
}

/// Of the same user: others are turned away by the kernel's word alone.
TEST(a_thousand_strangers_at_a_local_meeting_point_change_nothing) {
  MeetingOptions options;
  options.size = 3;
  options.endpoint = fresh_endpoint();
  options.secret = "secret";
  options.timeout = kLong;
  std::atomic<bool> open{false};
  std::atomic<bool> besieged{false};
  std::vector<HostSession> sessions(3);
  run_threads(4, [&](int thread) {
    MeetingOptions own = options;
    own.rank = thread;
    own.hostname = "host" + std::to_string(thread);
    if (thread == 0) own.on_wait = [&] { open = true; };
    if (thread < 3) {
      while (thread > 0 && !besieged) std::this_thread::yield();
      sessions[static_cast<std::size_t>(thread)] = meet_on_host(own);
      return;
    }
    while (!open) std::this_thread::yield();
    std::mt19937_64 generator(7);
    std::vector<Fd> crowd;
    for (int i = 0; i < kStrangers; ++i) {
      crowd.push_back(unix_socket::connect(options.endpoint));
      CHECK(crowd.back().valid());
      std::string words(1 + generator() % (unix_socket::kMaxMessage / 2), '\0');
      for (char& byte : words) byte = static_cast<char>(generator());
      const int manner = i % 3;  // 0: says nothing, and stays
      if (manner > 0) unix_socket::send(crowd.back(), words);
      if (manner == 2) crowd.pop_back();
      if (crowd.size() >= 300) crowd.erase(crowd.begin(), crowd.begin() + 150);
    }
    for (int i = 0; i < 200; ++i) crowd.push_back(unix_socket::connect(options.endpoint));
    besieged = true;
  });
  for (const HostSession& session : sessions) {
    CHECK_EQ(session.peers.size(), std::size_t{3});
    CHECK_EQ(session.peers[2].hostname, std::string("host2"));
  }
}

}  // namespace hvdtune::testing::test_meeting_fuzz
